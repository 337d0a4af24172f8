// The script of pages that show a sample: choosing, reading, flagging.
import "./reader.js";
import "./sample.js";
import "../flags/flags.js";
