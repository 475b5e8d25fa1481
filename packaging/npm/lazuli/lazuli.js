#!/usr/bin/env node
// Runs the binary that npm installed for this platform, with the same arguments and signals.
"use strict";
const { spawn } = require("node:child_process");
const os = require("node:os");

function binary() {
  const name = `lazuli-${process.platform}-${process.arch}`;
  try {
    return require.resolve(`${name}/bin/lazuli`);
  } catch {
    console.error(`lazuli: there is no binary for ${process.platform} on ${process.arch}: the package ${name} is not installed`);
    process.exit(1);
  }
}

/** Runs the binary under the given name, and ends as it ends. */
function run(name) {
  const child = spawn(binary(), process.argv.slice(2), { stdio: "inherit", argv0: name });
  process.on("SIGINT", () => {}); // A terminal sends it to the child as well, and a second one ends the child at once.
  for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.on("error", (error) => {
    console.error(`lazuli: ${error.message}`);
    process.exit(1);
  });
  child.on("exit", (code, signal) => process.exit(code ?? 128 + os.constants.signals[signal]));
}

module.exports = { run };
if (require.main === module) run("lazuli");
