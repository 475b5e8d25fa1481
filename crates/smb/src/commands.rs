//! One function for each command: parse, do, answer.
