// The script of pages that show a sample: selection, reading, flagging.
import "./narrow.js"; // before reader.js: its click handler runs first
import "./reader.js";
import "./sample.js";
import "../flags/flags.js";
