// The script of pages that show a sample: selection, reading, flagging.
import "./sample/narrow.js"; // before reader.js: its click handler runs first
import "./sample/reader.js";
import "./sample/sample.js";
import "./flags/flags.js";
