/* Compiles the modules of a zip file with the Python that will run them:
   node compile.mjs PYODIDE FROM.zip TO.zip
   Docstrings, assertions and line numbers are left out, which is half of what is loaded; names in
   tracebacks remain. */

import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, from, to] = process.argv.slice(2);
const { loadPyodide } = await import(`${pathToFileURL(folder)}/pyodide.mjs`);
const python = await loadPyodide({ indexURL: `${folder}/` });
python.FS.writeFile("/from.zip", new Uint8Array(readFileSync(from)));
python.runPython(`
import importlib._bootstrap_external as importing, zipfile
from types import CodeType

def bare(code):
    # an entry of the table of lines that says nothing covers eight units
    inner = tuple(bare(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    units = len(code.co_code) // 2
    nowhere = b"\\xff" * (units // 8) + (bytes([0xF7 + units % 8]) if units % 8 else b"")
    return code.replace(co_consts=inner, co_linetable=nowhere)

with zipfile.ZipFile("/from.zip") as old, zipfile.ZipFile("/to.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
    for name in sorted(old.namelist()):
        data, when = old.read(name), (1980, 1, 1, 0, 0, 0)
        if name.endswith(".py"):
            code = bare(compile(data, name, "exec", dont_inherit=True, optimize=2))
            name, data = name + "c", bytes(importing._code_to_hash_pyc(code, bytes(8), False))
        new.writestr(zipfile.ZipInfo(name, when), data, zipfile.ZIP_DEFLATED)
`);
writeFileSync(to, python.FS.readFile("/to.zip"));
