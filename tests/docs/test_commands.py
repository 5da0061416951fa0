"""Commands that the pages show are tested, or excused with a reason; links and paths in them lead somewhere."""

import ast
import glob
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGES = sorted(page for at in ("", "docs", "docs/decisions") for page in glob.glob(os.path.join(ROOT, at, "*.md")))
# Folder of pages -> the page that lists them.
INDEXES = {"": "README.md", "docs": "docs/index.md", "docs/decisions": "docs/decisions/README.md"}
LANGUAGES = ("", "sh", "python", "text", "json", "yaml", "cpp", "c", "diff", "bibtex", "{eval-rst}")

# Command: the test that runs it (file::function), or "excused: " and why none does.
COMMANDS = {
    "make quickstart": "tests/setup/test_checkout.py::test_quickstart_in_a_fresh_checkout",
    "make test": "excused: it is what runs these tests",
    "make setup": "tests/setup/test_checkout.py::test_quickstart_in_a_fresh_checkout",
    "make build": "tests/setup/test_checkout.py::test_quickstart_in_a_fresh_checkout",
    'make coverage ARGS="tests/config tests/cluster"': "excused: would run tests within a test",
    'make coverage ARGS="tests/config --cov-report=term-missing"': "excused: as above",
    ".venv/bin/python -m pytest tests/parallel/zero -n 0 -x": "excused: as above",
    "git config blame.ignoreRevsFile .git-blame-ignore-revs": (
        "tests/setup/test_automation.py::test_blame_passes_over_commits_that_are_named_in_full"
    ),
    "uv tool install pre-commit": "excused: uv's, not ours",
    "pre-commit install": "excused: pre-commit's; its hooks are tested in tests/setup/test_automation.py",
    "PYTHON=python3.6 VENV=.venv36 make test": "excused: needs Python 3.6; the variables are tested in test_set_up.py",
    "TF=2.21 make build": "excused: 600 MB of wheel; the variable is tested in test_set_up.py, test_pythons.py",
    "EPL_TF=gpu make quickstart": "excused: 400 MB of wheel that need a GPU",
    ".venv/bin/epl-launch --num_workers 2 --gpu_per_worker 2 train.py": (
        "tests/docs/test_commands.py::test_the_example_of_the_readme_trains_on_four_devices"
    ),
    "epl-launch -H node1:4,node2:4 --gpu_per_worker 1 train.py": (
        "tests/launcher/test_launcher_ssh.py::test_workers_of_all_machines_are_one_job"
    ),
    "epl-launch --check": "tests/launcher/test_launcher_check.py::test_a_machine_that_works",
    "export EPL_JOB_SECRET=$(openssl rand -hex 32)": "excused: OpenSSL's, not ours",
    "srun --kill-on-bad-exit=1 python train.py": ("tests/cluster/test_scheduler_jobs.py::test_tasks_train_together"),
    "mpirun -n 8 -H node1:4,node2:4 -x EPL_JOB_HOSTS=node1:4,node2:4 -x EPL_JOB_SECRET python train.py": (
        "tests/cluster/test_scheduler_jobs.py::test_mpirun_on_several_machines_takes_the_list_of_the_user"
    ),
    "openssl rand -hex 32 > job.key && chmod 600 job.key": "excused: OpenSSL's, not ours",
    "epl-launch --num_workers 2 --gpu_per_worker 4 --machine_rank 0 --machine_list 10.0.0.1:2222,10.0.0.2:2222 "
    "--secret_file job.key train.py": (
        "tests/launcher/test_launcher_secret.py::test_a_secret_file_reaches_the_worker_as_a_path"
    ),
    "epl-plan --devices 2x4 --set zero.level=v1 --save plan.json train.py": (
        "tests/planner/test_plan_command.py::test_workers_that_are_not_there"
    ),
    "epl-plan --devices 2 --search --save plan.json train.py": (
        "tests/planner/test_saved_plans.py::test_from_the_search_to_the_training"
    ),
    "epl-plan --devices 2 --search --trials 3 --save plan.json train.py": (
        "tests/planner/test_trials.py::test_the_fastest_of_two_plans_is_saved_and_nothing_stays"
    ),
    "epl-plan --devices 2 --plan plan.json train.py": (
        "tests/planner/test_saved_plans.py::test_from_the_search_to_the_training"
    ),
    "epl-launch --num_workers 1 --gpu_per_worker 2 -x EPL_AUTO_PLAN_FILE=plan.json train.py": (
        "tests/planner/test_saved_plans.py::test_from_the_search_to_the_training"
    ),
    "epl-plan --machine 2x8*v100-32,eth-25 --rows 512 --search --save plan.json train.py": (
        "tests/planner/test_plan_command.py::test_searches_for_the_fastest_plan_and_saves_it"
    ),
    "epl-plan --machine benchmarks/papers/alexnet/machine.json --rows 32 benchmarks/papers/alexnet/model.py "
    "--dense one": ("tests/benchmarks/test_papers.py::test_epl_plan_plans_the_scripts"),
    "epl-plan --calibrate here.yaml --devices 2x1": ("tests/planner/calibration/test_calibrate.py::test_this_machine"),
    "epl-trace merge trace_step_2.json epl_profile/trace_step_2_worker_*.json": (
        "tests/profiler/test_merged_trace.py::test_the_console_script_loads_no_tensorflow"
    ),
    "tensorboard --logdir logs": "excused: TensorBoard's, not ours",
    **dict.fromkeys(
        [
            "export EPL_JOB_ID=$SLURM_JOB_ID",
            "export MACHINES=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed 's/$/:2222/' | paste -sd, -)",
            "srun bash -c 'epl-launch --num_workers $SLURM_NNODES --gpu_per_worker 4 --machine_rank $SLURM_NODEID "
            "--machine_list $MACHINES --log_dir experiments/$SLURM_JOB_ID-$SLURM_NODEID "
            "--secret_file job.key train.py'",
        ],
        "tests/docs/test_clusters.py::test_the_slurm_script_starts_one_launcher_on_each_machine",
    ),
    "pip install .": "tests/setup/test_package.py::test_a_platform_wheel_has_the_native_libraries",
    'pip install ".[cpu]"': "tests/setup/test_package.py::test_one_line_installs_everything_into_a_fresh_environment",
    'pip install ".[gpu]"': "tests/setup/test_package.py::test_the_extras_name_one_tensorflow",
    "EPL_NATIVE=on pip install .": "tests/setup/test_package.py::test_native_on_refuses_to_go_without",
    "EPL_NATIVE=off pip install .": "tests/setup/test_package.py::test_native_off_builds_a_wheel_for_any_platform",
    "EPL_NATIVE=on pip install --force-reinstall --no-deps .": (
        "tests/setup/test_package.py::test_native_on_refuses_to_go_without"
    ),
    "docker build -f docker/Dockerfile.cpu -t epl:cpu .": (
        "tests/setup/test_docker.py::test_an_image_installs_epl_with_its_native_libraries"
    ),
    "docker build -f docker/Dockerfile.gpu -t epl:gpu .": (
        "tests/setup/test_docker.py::test_an_image_installs_epl_with_its_native_libraries"
    ),
    "docker build -f docker/Dockerfile.nvidia -t epl:nvidia .": (
        "tests/setup/test_docker.py::test_an_image_installs_epl_with_its_native_libraries"
    ),
    "docker build -f docker/Dockerfile.tf2 -t epl:tf2 .": (
        "tests/setup/test_docker.py::test_an_image_installs_epl_with_its_native_libraries"
    ),
    "kubectl create secret generic epl-job --from-literal=secret=$(openssl rand -hex 32)": "excused: needs a cluster",
    'docker run --rm --gpus all --net host --ipc host -v "$PWD:/work" epl:gpu epl-launch --num_workers 2 '
    "--gpu_per_worker 1 train.py": "excused: needs an engine and GPUs; the launcher's part is tested in tests/launcher",
    'docker run -ti --gpus all --name epl_nvidia --net host --ipc host -v "$PWD:/epl" -w /epl '
    "nvcr.io/nvidia/tensorflow:21.12-tf1-py3 bash": "excused: needs an engine and GPUs",
    'docker run -ti --gpus all --name epl_gpu --net host --ipc host -v "$PWD:/epl" -w /epl '
    "tensorflow/tensorflow:1.15.5-gpu-py3 bash": "excused: needs an engine and GPUs",
    "pip install --upgrade pip==21.3.1": "excused: pip's, not ours",
    "pip install nvidia-nccl-cu11==2.19.3": "excused: 180 MB that need a GPU",
    "make package": "tests/setup/test_release.py::test_one_command_builds_the_release",
    'make package ARGS="--python python3.6 --python /opt/nvidia/bin/python3.8"': (
        "tests/setup/test_release.py::test_interpreters_with_one_tensorflow_share_a_wheel"
    ),
    "uv tool run --from 'uv<0.7' uv python install 3.7": "excused: downloads a Python into the home directory",
    "apt-get update && apt-get install -y g++ make": "excused: changes the machine",
    "apt-get install -y libgloo-dev": "excused: changes the machine",
    'pip install "protobuf<3.21"': "excused: pip's, not ours",
    'pip install "numpy<1.19"': "excused: pip's, not ours",
}


def fences(page):
    """(language, text) of the fenced blocks of a page."""
    with open(page, encoding="utf-8") as source:
        return re.findall(r"^```(\w*)\n(.*?)^```$", source.read(), re.MULTILINE | re.DOTALL)


def shown_commands():
    """(page, command) for every line of every `sh` block; continued lines are one command, comments are none."""
    for page in PAGES:
        for language, text in fences(page):
            if language == "sh":
                for line in text.replace("\\\n", " ").split("\n"):
                    command = " ".join(re.sub(r"\s#\s.*|^#.*", "", line).split())
                    if command:
                        yield os.path.relpath(page, ROOT), command


def test_every_shown_command_is_tested_or_excused():
    assert [shown for shown in shown_commands() if shown[1] not in COMMANDS] == []


def test_the_table_names_no_command_that_is_not_shown():
    shown = {command for _, command in shown_commands()}
    assert [command for command in COMMANDS if command not in shown] == []


def test_the_table_names_tests_that_exist():
    for where in COMMANDS.values():
        if not where.startswith("excused: "):
            path, name = where.split("::")
            with open(os.path.join(ROOT, path), encoding="utf-8") as source:
                assert f"def {name}(" in source.read(), where


def test_every_make_target_that_is_named_exists():
    with open(os.path.join(ROOT, "Makefile"), encoding="utf-8") as source:
        targets = set(re.findall(r"^([a-z-]+):", source.read(), re.MULTILINE))
    for page in PAGES:
        with open(page, encoding="utf-8") as source:
            named = set(re.findall(r"(?:`|^)(?:\w+=\S+ )*make ([a-z-]+)(?:`|$)", source.read(), re.MULTILINE))
        assert named <= targets, page


def test_every_block_names_its_language():
    assert [(page, language) for page in PAGES for language, _ in fences(page) if language not in LANGUAGES] == []


def test_every_python_block_is_python():
    for page in PAGES:
        for language, text in fences(page):
            if language == "python":
                ast.parse(text, page)


def test_every_link_leads_somewhere():
    broken = []
    for page in PAGES:
        with open(page, encoding="utf-8") as source:
            links = re.findall(r"\]\(([^)\s]+)\)", source.read())
        for link in links:
            path, _, anchor = link.partition("#")
            target = os.path.join(os.path.dirname(page), path) if path else page
            if "://" not in link and not (os.path.exists(target) and (not anchor or anchor in _anchors(target))):
                broken.append((os.path.relpath(page, ROOT), link))
    assert broken == []


def _anchors(page):
    with open(page, encoding="utf-8") as source:
        titles = re.findall(r"^#+ (.*)$", source.read(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_every_page_is_in_the_index_of_its_folder():
    missing = []
    for folder, name in INDEXES.items():
        with open(os.path.join(ROOT, name), encoding="utf-8") as source:
            index = source.read()
        pages = {os.path.basename(page) for page in PAGES if os.path.dirname(os.path.relpath(page, ROOT)) == folder}
        missing += [page for page in sorted(pages - {os.path.basename(name)}) if f"({page})" not in index]
    assert missing == []


def test_every_path_of_the_checkout_that_is_named_exists():
    folders = "|".join(
        ["epl", "tests", "docs", "csrc", "tools", "benchmarks", "requirements", "examples", "docker", r"\.github"]
    )
    missing = []
    for page in PAGES:
        with open(page, encoding="utf-8") as source:
            named = re.findall(rf"`((?:{folders})/[\w./-]+)`", source.read())
        gone = [path for path in named if not os.path.exists(os.path.join(ROOT, path))]
        missing += [(os.path.relpath(page, ROOT), path) for path in gone]
    assert missing == []


@pytest.fixture
def example(tmp_path):
    """A folder that holds the example of the README as train.py."""
    code = [text for language, text in fences(os.path.join(ROOT, "README.md")) if language == "python"]
    (tmp_path / "train.py").write_text(code[0])
    return tmp_path


def run(example, *command):
    env = dict(os.environ, PYTHONPATH=ROOT, CUDA_VISIBLE_DEVICES="")
    return subprocess.run(
        command, cwd=str(example), env=env, timeout=240, check=False, universal_newlines=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_the_example_of_the_readme_trains_on_one_device(example):
    done = run(example, sys.executable, "train.py")
    assert done.returncode == 0, done.stdout
    assert "step 10: loss" in done.stdout


def test_the_example_of_the_readme_trains_on_four_devices(example):
    launch = [sys.executable, "-m", "epl.utils.launcher", "--num_workers", "2", "--gpu_per_worker", "2", "train.py"]
    done = run(example, *launch)
    assert done.returncode == 0, done.stdout
    assert "step 10: loss" in done.stdout
