"""What the compiler says to a mistake: one sentence, at the line where it was made, and no list of candidates.

mistakes.py COMPILER FLAGS... -- FILES...   A line "// expect: text" in a file has the sentence for the mistake in the next one.
"""
import os
import re
import subprocess
import sys


def complaints(compiler, path):
    """What is wrong with the compiler's answers to the mistakes in a file."""
    with open(path, encoding="utf-8") as file:
        expected = [(i + 1, m.group(1)) for i, line in enumerate(file, 1) if (m := re.search(r"// expect: (.*?)\s*$", line))]
    run = subprocess.run([*compiler, "-fsyntax-only", "-fdiagnostics-color=never", path], stderr=subprocess.PIPE, text=True,
                         env={**os.environ, "LC_ALL": "C"})
    lines = run.stderr.splitlines()
    # The compiler tells where it comes from before it tells what is wrong, and quotes the line with the sentence after it. A
    # quoted line of the file itself holds what is expected, not what is said.
    errors, came_from = [], set()
    for i, line in enumerate(lines):
        came_from.update(int(number) for number in re.findall(re.escape(path) + r":(\d+):", line))
        if " error: " in line:
            quoted = "" if line.startswith(path) else "".join(lines[i + 1:i + 2])
            errors.append((came_from, line + quoted))
            came_from = set()
    for line in lines:
        if re.search(r"candidate|no matching|no type named", line):
            yield f"{path}: a mistake is answered with a list: {line}"
    for number, sentence in expected:
        found = [error for error in errors if number in error[0] and sentence in error[1]]
        if len(found) != 1:
            yield f"{path}:{number}: {len(found)} answers instead of one with: {sentence}"
        errors = [error for error in errors if error not in found]
    for _, line in errors:
        yield f"{path}: an answer that nobody expects: {line}"


def main():
    end = sys.argv.index("--")
    wrong = [each for path in sys.argv[end + 1:] for each in complaints(sys.argv[1:end], path)]
    print("\n".join(wrong) or "every mistake has its sentence")
    return 1 if wrong else 0


sys.exit(main())
