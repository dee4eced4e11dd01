// Judges content security policies, {name: policy} on stdin, and prints [[name, severity, directive, value]].
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const load = createRequire(join(process.argv[2], "package.json"));
const { CspParser } = load("csp_evaluator/dist/parser.js");
const { CspEvaluator } = load("csp_evaluator/dist/evaluator.js");
const found = [];
for (const [name, policy] of Object.entries(JSON.parse(readFileSync(0, "utf8")))) {
  for (const one of new CspEvaluator(new CspParser(policy).csp).evaluate()) {
    found.push([name, one.severity, one.directive, one.value ?? ""]);
  }
}
console.log(JSON.stringify(found));
