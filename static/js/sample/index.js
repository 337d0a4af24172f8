// The script of pages that show a sample: selection, reading, flagging.
import "./reader.js";
import "./sample.js";
import "../flags/flags.js";
