"""What a user does with an installed Lockstep: the command, the function, and the laws in a test suite of their own.

Each time from a folder that has something in Lockstep's way.
"""

import zipfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lockstep.tests.installed import README_CLASS, Environment, clone, install

LAW = "gradients_equal_the_mean"
HOSTILE = """import pytest

def pytest_addoption(parser):
    parser.addoption("--impl", default="theirs")
    parser.addoption("--world", default="earth")

@pytest.fixture
def impl(request):
    return request.config.getoption("--impl")
"""
OWN_TESTS = """def test_one(impl):
    assert impl == "theirs"

def test_two():
    pass

def test_three():
    assert 1 + 1 == 2
"""
PYPROJECT = """[tool.pytest.ini_options]
addopts = "-W error --strict-markers --strict-config"
testpaths = ["tests"]
pythonpath = ["."]
"""
PACKAGES = ("oracle", "worlds", "impls", "properties", "benchmarks")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with a wheel of this clone."""
    return install(tmp_path_factory.mktemp("installed"))


@pytest.fixture(params=["installed", "clone"])
def environment(request: pytest.FixtureRequest) -> Environment:
    """Both ways to have Lockstep."""
    found: Environment = request.getfixturevalue("installed") if request.param == "installed" else clone()
    return found


def alone(folder: Path) -> None:
    """The class of the README, and nothing else."""
    (folder / "my_ddp.py").write_text(README_CLASS)


def with_packages_of_the_same_names(folder: Path) -> None:
    """It imports from packages of the user's that are called as Lockstep's folders are."""
    for package in PACKAGES:
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("")
        (folder / package / "mine.py").write_text("value = 1\n")
    imports = "".join(f"from {package} import mine as {package}_of_mine\n" for package in PACKAGES)
    check = f"assert {' + '.join(f'{package}_of_mine.value' for package in PACKAGES)} == 5\n"
    (folder / "my_ddp.py").write_text(imports + check + README_CLASS)


def in_a_repository(folder: Path) -> None:
    """It lies in a repository whose own pytest is set up in another way."""
    alone(folder)
    (folder / "conftest.py").write_text(HOSTILE)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_own.py").write_text(OWN_TESTS)


def beside_a_module_called_lockstep(folder: Path) -> None:
    """The folder has a script of that name."""
    alone(folder)
    (folder / "lockstep.py").write_text("raise RuntimeError('this is no package of anybody')\n")


@pytest.mark.parametrize(
    ("environment", "around", "processes"),
    [
        ("installed", alone, 2),
        ("installed", with_packages_of_the_same_names, 0),
        ("installed", in_a_repository, 2),
        ("clone", with_packages_of_the_same_names, 0),
        ("clone", beside_a_module_called_lockstep, 2),
    ],
    indirect=["environment"],
)
def test_a_class_is_checked_from_any_folder(
    environment: Environment, around: Callable[[Path], None], processes: int, tmp_path: Path
) -> None:
    around(tmp_path)
    before = {*tmp_path.iterdir()}
    script = "from lockstep.command import main; main()"  # what the installed command is; it has no current folder
    asked = (
        "check",
        "my_ddp:MyDDP",
        "--world",
        "sim",
        "-k",
        LAW,
        "--seed",
        "1",
        "-n",
        str(processes),
        "--junitxml",
        "out.xml",
    )
    code, output = environment.run(tmp_path, "-P", "-c", script, *asked)
    assert code == 1, output
    assert "MyDDP breaks P1 on the sim world: silently wrong" in output
    assert "different parameters meet here" in output
    assert "lockstep: MyDDP: gradients are final after finish_gradient_synchronization()\n" in output
    assert "Traceback" not in output
    assert ("lockstep.py" in {path.name for path in before}) == ("is what runs, and not" in output)
    new = {path.name for path in tmp_path.iterdir()} - {path.name for path in before} - {"__pycache__", ".hypothesis"}
    assert new == {"lockstep-report", "out.xml"}
    (case,) = ElementTree.parse(tmp_path / "out.xml").iter("testcase")
    told = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
    assert told["lockstep.verdict"] == "broken by D1"
    assert told["lockstep.1.script"].startswith("lockstep-report")


def test_what_holds_leaves_no_report_and_exit_code_0(installed: Environment, tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text("from lockstep.impls.naive import NaiveDataParallel\n")
    asked = ("check", "right:NaiveDataParallel", "--world", "sim", "-k", LAW, "-n", "0", "--report", "elsewhere")
    code, output = installed.run(tmp_path, "-m", "lockstep", *asked)
    assert code == 0, output
    assert "holds on sim" in output
    assert {path.name for path in tmp_path.iterdir()} <= {"right.py", "__pycache__", ".hypothesis"}


def test_the_laws_are_tests_of_a_suite_of_the_users_own(installed: Environment, tmp_path: Path) -> None:
    in_a_repository(tmp_path)
    asked = f"laws='{LAW}', examples=10, seed=1"
    lines = f"import lockstep\nfrom my_ddp import MyDDP\ntest_my_ddp = lockstep.law_tests(MyDDP, {asked})\n"
    right = f"test_right = lockstep.law_tests('lockstep.impls.naive:NaiveDataParallel', {asked})\n"
    (tmp_path / "tests" / "test_ddp.py").write_text(lines + right)
    code, output = installed.run(tmp_path, "-m", "pytest", "-n", "2", "--junitxml", "out.xml")
    assert code == pytest.ExitCode.TESTS_FAILED, output
    assert "1 failed, 4 passed" in output
    assert f"FAILED tests/test_ddp.py::test_my_ddp[P1-{LAW}_over_ranks-sim]" in output
    assert "warning" not in output
    cases = {case.attrib["name"]: case for case in ElementTree.parse(tmp_path / "out.xml").iter("testcase")}
    told = {
        name: {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
        for name, case in cases.items()
        if name.startswith(("test_my_ddp", "test_right"))
    }
    verdicts = sorted(each["lockstep.verdict"] for each in told.values())
    assert verdicts[0] == "holds"
    assert "silently wrong" in verdicts[1]
    code, output = installed.run(tmp_path, "-m", "pytest", "-q", "-k", "not my_ddp", "--impl", "theirs")
    assert (code, "4 passed" in output) == (0, True), output


def test_a_suite_with_a_target_that_is_not_there_says_so_in_one_line(installed: Environment, tmp_path: Path) -> None:
    in_a_repository(tmp_path)
    (tmp_path / "tests" / "test_ddp.py").write_text("import lockstep\ntest_it = lockstep.law_tests('my_ddp:Your')\n")
    code, output = installed.run(tmp_path, "-m", "pytest", "-q")
    assert code == pytest.ExitCode.INTERRUPTED
    assert "\nlockstep: my_ddp:Your: my_ddp has no attribute 'Your'; it defines MyDDP\n" in output
    assert "Traceback" not in output


def test_the_function_works_in_a_plain_process_and_in_a_script_on_standard_input(
    installed: Environment, tmp_path: Path
) -> None:
    alone(tmp_path)
    asked = f"laws='{LAW}', examples=10, seed=1"
    (tmp_path / "plain.py").write_text(
        f"import lockstep, my_ddp\nresult = lockstep.check(my_ddp.MyDDP, {asked})\n"
        "failure = result.failures[0]\nprint(result, repr(result), failure.verdict, failure.script.is_file())\n"
    )
    code, output = installed.run(tmp_path, "plain.py")
    assert code == 0, output
    assert "confirmed: 2 real processes on gloo give the same wrong bits." in output
    assert "<CheckResult of my_ddp:MyDDP: 1 of 1 laws are broken>" in output
    assert output.endswith(" True\n")
    here = README_CLASS + f"import lockstep\nlockstep.check(MyDDP, {asked}).raise_for_failures()\n"
    code, output = installed.run(tmp_path, "-", stdin=here)
    assert code == 1
    assert "lockstep.checking.LawsBroken" in output
    assert "__main__:MyDDP" in output


def test_a_wheel_has_what_users_need_and_nothing_of_the_suites_own(installed: Environment) -> None:
    (wheel,) = installed.python.parents[2].glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"lockstep/py.typed", "lockstep/properties/test_mean.py", "lockstep/impls/naive.py"} <= {*names}
    assert not [name for name in names if "/tests/" in name or "/faults/" in name or "/twins/" in name]
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"lockstep", "lockstep_dp"}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_has_a_bare_name(environment: Environment, package: str, tmp_path: Path) -> None:
    code, output = environment.run(tmp_path, "-c", f"import {package}")
    assert code == 1
    assert "ModuleNotFoundError" in output or f"imported as lockstep.{package}, not as {package}" in output
