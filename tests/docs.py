#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests README.md, docs/ and the other pages of the repository: docs.py BRIM [--all] [PAGE…]

Links and anchors must exist, and every page of docs/ must be linked from docs/README.md. Options in code must exist in the help of
their subcommand. Shell blocks must parse; Python, YAML and C++ blocks too. Blocks with a prompt ("$ ") are run in a directory of
their page with the files of tests/data/docs and examples/, and their output is compared: numbers, sizes and device names may differ,
"..." stands for any text, line breaks are ignored. A comment before a block changes this:

  <!-- slow -->               run with --all only
  <!-- network -->            never run: needs a network
  <!-- not run: REASON -->    never run

`brim serve` runs in the background until the next server or the end of the page. A YAML block whose first line is "# NAME.yaml" is saved
under this name, and so is the output of "$ cat NAME" at the start of a block if NAME does not exist. A command without output must succeed.
"""
import ast
import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = {"tweets.csv": "examples/tweets.csv", "stocks": "examples/forecast_stocks/prices", "train.csv": "examples/train_vietnamese/train.csv",
            "val.csv": "examples/train_vietnamese/val.csv", "labelled.csv": "examples/train_both/tweets.csv", "train.conll": "examples/train_both/names.conll",
            "examples": "examples", "models": "models", "run-tests": "run-tests"}
problems: list[str] = []


class Block:
    def __init__(self, page, line, language, marker, text):
        self.page, self.line, self.language, self.marker, self.text = page, line, language, marker, text

    @property
    def has_prompt(self):
        return self.language in ("", "console", "sh") and bool(re.search(r"^\$ ", self.text, re.M))

    def fail(self, text):
        problems.append(f"{self.page}:{self.line}: {text}")


def pages():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True)
    folders = ("docs", "examples", "models", ".github")
    names = listed.stdout.split() or [str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *(p for f in folders for p in (ROOT / f).rglob("*.md"))]]
    return [n for n in names if (ROOT / n).is_file() and not n.startswith(("tests/", "src/")) and n != "THIRD_PARTY_NOTICES.md"]


def split_blocks(page, text):
    """Returns the fenced and indented blocks, and the text without them."""
    blocks, prose, open_block, marker = [], [], None, ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            if open_block is None:
                open_block = Block(page, number, line.strip()[3:].strip(), marker, "")
            else:
                blocks.append(open_block)
                open_block, marker = None, ""
        elif open_block is not None:
            open_block.text += line + "\n"
        elif line.startswith("    ") and (not prose or not prose[-1].strip() or prose[-1] == "\0"):
            blocks.append(Block(page, number, "indented", marker, line[4:] + "\n"))
            prose.append("\0")
            continue
        elif found := re.fullmatch(r"<!-- (.*) -->", line):
            marker = found.group(1)
        elif line.strip():
            marker = ""
        prose.append("" if open_block is not None or line.lstrip().startswith("```") else line)
    return blocks, "\n".join(line.replace("\0", "") for line in prose)


# --- links ---


def anchors(text):
    seen, found = {}, set()
    for title in re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.S), re.M):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-")
        found.add(slug if slug not in seen else f"{slug}-{seen[slug]}")
        seen[slug] = seen.get(slug, 0) + 1
    return found


def check_links(texts):
    linked = {"docs/README.md"}
    for page, text in texts.items():
        plain = re.sub(r"`[^`\n]*`", "", split_blocks(page, text)[1])
        for target in re.findall(r"\]\(([^)\s]+)\)", plain):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (ROOT / page).parent / name if name else ROOT / page
            if not path.exists():
                problems.append(f"{page}: link to {target}, which does not exist")
                continue
            relative = os.path.relpath(path, ROOT)
            if page == "docs/README.md":
                linked.add(relative)
            if anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
                problems.append(f"{page}: link to {target}, but {relative} has no such heading")
    for page in texts:
        if page.startswith("docs/") and page.count("/") == 1 and page not in linked:
            problems.append(f"{page}: not linked from docs/README.md")


# --- options ---


class Options:
    def __init__(self, brim):
        self.brim, self.known = brim, {}

    def help(self, *verb):
        if verb not in self.known:
            done = subprocess.run([self.brim, "help", "--all", *verb], capture_output=True, text=True)
            self.known[verb] = set(re.findall(r"--[a-z][a-z0-9-]*", done.stdout)) if done.returncode == 0 else None
        return self.known[verb]

    def of_command(self, words):
        """The options of the longest subcommand that these words begin with; None if there is no such subcommand."""
        verb = []
        for word in words[:3]:
            if not re.fullmatch(r"[a-z]+", word) or self.help(*verb, word) is None:
                break
            verb.append(word)
        if not verb:
            return None
        return set().union(*(self.help(*verb[:n + 1]) for n in range(len(verb))))


def brim_commands(text):
    joined = re.sub(r"\\\n\s*", " ", text)
    for line in joined.split("\n"):
        line = re.sub(r"(^|\s)#.*$", "", re.sub(r"'[^']*'", lambda m: m.group(0).replace("#", ""), line))
        for part in re.split(r"\||&&|;|\$\(|\s--\s", line):
            if found := re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:sbatch.*--wrap ')?(?:nice -n \S+ )?(?:\./)?brim\s+(.*)", part):
                yield found.group(1).split(")")[0].strip().strip("'")


def check_options(block_text, report, options):
    for command in brim_commands(block_text):
        words = [word for word in command.split() if word not in ("--env-file", ".env", "bot.env", "fast.env")]
        if not words or words[0].startswith(("-", "…", "[")) or words[0] == "help":
            continue
        known = options.of_command(words)
        if known is None:
            if re.fullmatch(r"[a-z]+", words[0]):
                report(f"there is no 'brim {words[0]}'")
            continue
        for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", " ".join(words)):
            if option not in known and option != "--help":
                report(f"'brim {words[0]}' has no option {option}")


# --- blocks ---


def check_syntax(block):
    if block.language == "python":
        try:
            ast.parse(block.text)
        except SyntaxError as error:
            block.fail(f"Python: {error}")
    elif block.language == "yaml":
        with contextlib.suppress(ImportError):
            import yaml
            try:
                yaml.safe_load(block.text)
            except yaml.YAMLError as error:
                block.fail(f"YAML: {error}")
    elif block.language == "cpp" and shutil.which("g++"):
        done = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", f"-I{ROOT}/include", "-x", "c++", "-"], input=block.text, capture_output=True, text=True)
        if done.returncode:
            block.fail(f"C++: {done.stderr.strip()[:300]}")
    elif block.language in ("sh", "bash", "console") or block.has_prompt:
        lines = [line[2:] if line.startswith("$ ") else line for line in block.text.split("\n")]
        script = "\n".join(commands(block.text)) if block.has_prompt else "\n".join(lines)
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        if done.returncode:
            block.fail(f"shell: {done.stderr.strip()[:200]}")


def steps(text):
    """(command, expected output) of a block with prompts."""
    found = []
    for line in text.rstrip("\n").split("\n"):
        if line.startswith("$ "):
            found.append([line[2:], ""])
        elif found and found[-1][0].endswith("\\") and not found[-1][1]:
            found[-1][0] += "\n" + line
        elif found:
            found[-1][1] += line + "\n"
    return found


def commands(text):
    return [command for command, _ in steps(text)]


def masked(text):
    text = re.sub(r"\x1b\[[0-9;]*m|\r[^\n]*\r|[█▉▊▋▌▍▎▏░]", "", text)
    text = re.sub(r"\b(cpu|cuda:\d+) \([^)]*\)", r"\1(#)", text)
    text = re.sub(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2})?|\d{8}_\d{6}", "#", text)
    text = re.sub(r"\s+", "", text)
    text = text.replace(str(ROOT), "/usr/share/brim")
    text = re.sub(r"@[0-9a-f]{8}|\bbatch_[0-9a-f]+|(?<=\"id\":\")[0-9a-f]+(-\d+)?", "#", text)
    return re.sub(r"[−+]?\d+(?:[.,]\d+)*(?:e-?\d+)?(?:GiB|MiB|KiB|ms|µs|k|M|s|B)?", "#", text)


def differs(expected, actual):
    """Empty if each part of `expected` between two "..." occurs in `actual`, in this order; else the first part that does not."""
    got, position = masked(actual), 0
    for part in re.split(r"\.\.\.", expected):
        want = masked(part).strip("#")
        found = got.find(want, position)
        if found < 0:
            return part.strip()
        position = found + len(want)
    return ""


class Session:
    """Runs the commands of one page in a directory of its own."""

    def __init__(self, brim):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="brim-docs-"))
        self.server, self.port = None, 0
        (self.directory / "bin").mkdir()
        (self.directory / "bin" / "brim").symlink_to(brim)
        (self.directory / "brim").symlink_to(brim)
        for name, source in EXAMPLES.items():
            (self.directory / name).symlink_to(ROOT / source)
        for path in (ROOT / "tests/data/docs").iterdir():
            target = self.directory / path.name
            shutil.copytree(path, target) if path.is_dir() else shutil.copy(path, target)
        (self.directory / ".curlrc").write_text("silent\nshow-error\n")
        self.environment = {**os.environ, "PATH": f"{self.directory}/bin:{os.environ['PATH']}", "BRIM_HOME": str(ROOT), "NO_COLOR": "1",
                            "BRIM_CACHE": str(self.directory / ".cache"), "TMPDIR": str(self.directory), "CURL_HOME": str(self.directory)}

    def close(self):
        self.stop_server()
        shutil.rmtree(self.directory, ignore_errors=True)

    def stop_server(self):
        if self.server:
            self.server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(20)
            self.server.kill()
            self.server = None

    def start_server(self, command):
        self.stop_server()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        log = self.directory / "server.log"
        with open(log, "w") as output:
            self.server = subprocess.Popen(["bash", "-c", f"exec {command} --listen 127.0.0.1:{self.port} --lame-duck-seconds 0"], cwd=self.directory,
                                           env=self.environment, stdout=output, stderr=output)
        end = time.monotonic() + 60
        while time.monotonic() < end and self.server.poll() is None and "listening" not in log.read_text():
            time.sleep(0.05)
        return log.read_text()

    def run(self, command, expected, first):
        command = command.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")
        if re.match(r"brim serve\b", command) and "--check" not in command:
            return self.start_server(command)
        if (found := re.fullmatch(r"cat (\S+)", command)) and first:
            path = self.directory / found.group(1)
            if not path.exists():
                path.write_text(expected)
        done = subprocess.run(["bash", "-c", command], cwd=self.directory, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, timeout=300)
        output = done.stdout.decode(errors="replace")
        return f"exit code {done.returncode}: {output}" if done.returncode and not expected.strip() else output


def run_page(blocks, brim, everything):
    ran, session = 0, None
    try:
        for block in blocks:
            if block.language == "yaml" and (found := re.match(r"# (\S+\.yaml)\n", block.text)):
                session = session or Session(brim)
                (session.directory / found.group(1)).write_text(block.text)
            skipped = block.marker == "network" or block.marker.startswith("not run") or (block.marker == "slow" and not everything)
            if not block.has_prompt or skipped:
                continue
            session = session or Session(brim)
            ran += 1
            for number, (command, expected) in enumerate(steps(block.text)):
                actual = session.run(command, expected, number == 0)
                if part := differs(expected, actual) or (not expected.strip() and actual.startswith("exit code ") and "success"):
                    block.fail(f"$ {command}\n  expected: {part}\n  got: {actual.strip()[:1500]}")
    finally:
        if session:
            session.close()
    return ran


def self_test():
    """Shows that the comparisons can fail."""
    assert not differs("a 1 b\n...\nc 2.5 ms", "a 7 b x\ny c 13 ms") and differs("a 1 b", "a 1 c") and differs("b ... a", "a b")
    assert anchors("# A `b`-c, d\n## E\n## E\n") == {"a-b-c-d", "e", "e-1"}
    assert list(brim_commands("$ brim score a | head\nseq 2 | xargs brim score {} -q # brim x")) == ["score a"]
    assert steps("$ a \\\n  b\nc\n$ d\n") == [["a \\\n  b", "c\n"], ["d", ""]]


def main():
    self_test()
    arguments = [a for a in sys.argv[1:] if a != "--all"]
    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    brim, chosen = os.path.abspath(arguments[0]), arguments[1:]
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in pages()}
    check_links(texts)
    options, ran, count = Options(brim), 0, 0
    for page, text in texts.items():
        if page.startswith("docs/archive/") or page == "CHANGELOG.md" or (chosen and page not in chosen):
            continue
        blocks, prose = split_blocks(page, text)
        count += len(blocks)
        for block in blocks:
            check_syntax(block)
            if block.language in ("", "sh", "console", "indented"):
                check_options(block.text, block.fail, options)
        for inline in re.findall(r"`(brim [^`\n]*)`", prose):
            check_options(inline, lambda problem, page=page, inline=inline: problems.append(f"{page}: `{inline}`: {problem}"), options)
        ran += run_page(blocks, brim, "--all" in sys.argv)
    print("\n".join(problems))
    print(f"documents: {len(texts)} pages, {count} blocks, {ran} of them run, {len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
