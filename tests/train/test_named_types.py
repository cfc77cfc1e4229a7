"""`NamedTypes`: classes named on the command line, built in or in a file of the user."""

from abc import ABC, abstractmethod

import pytest

from cavs.errors import ConfigError
from cavs.train.configuration.names import STORE
from cavs.train.named_types import NamedTypes
from cavs.train.policies import BUILT_IN, POLICIES, GNSBatch
from cavs.train.policy import Policy

MINE = """from cavs.train import Policy


class Mine(Policy):
    def __init__(self, every=1, name=""):
        self.every, self.label = 6 // every, name


class Other:
    pass
"""


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)


@pytest.mark.parametrize("policy", BUILT_IN)
def test_built_in_policies_are_found_by_name(policy, tmp_path, monkeypatch):
    monkeypatch.setenv(STORE, str(tmp_path / "cluster.json"))  # FollowStore reads one
    assert type(POLICIES.find(policy.__name__)) is policy


def test_options_are_literals():
    found = POLICIES.find(" GNSBatch(every=2, most=64) ")
    assert isinstance(found, GNSBatch) and (found.every, found.most) == (2, 64)
    found = POLICIES.find("mine.py:Mine(every=2, name='a')")
    assert isinstance(found, Policy) and (found.every, found.label) == (3, "a")
    assert type(found).__name__ == found.name == "Mine"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("Gns", "no policy is called 'Gns'", "GNSBatch, AdaptiveBatch"),
        ("GNSBatch(", "'GNSBatch(' names no policy", "NAME(option=value)"),
        ("GNSBatch(3)", "names no policy", "NAME(option=value)"),
        ("GNSBatch(**{})", "names no policy", "NAME(option=value)"),
        ("GNSBatch(every=len)", "names no policy", "NAME(option=value)"),
        ("a.GNSBatch", "names no policy", "FILE.py:NAME"),
        ("", "'' names no policy", "FILE.py:NAME"),
        ("GNSBatch(size=3)", "unexpected keyword argument 'size'", "it is GNSBatch(every"),
        ("GNSBatch(every=0)", "every is 0", "1"),
        ("none.py:Mine", "there is no file none.py", "check the path"),
        ("mine.py:Yours", "mine.py has no class Yours that is a Policy", "cavs.train.Policy"),
        ("mine.py:Other", "mine.py has no class Other that is a Policy", "cavs.train.Policy"),
        ("mine.py:Mine(x=1)", "unexpected keyword argument 'x'", "it is Mine(every=1"),
    ],
)
def test_texts_that_name_nothing_are_refused(text, message, hint):
    with pytest.raises(ConfigError) as caught:
        POLICIES.find(text)
    assert message in str(caught.value) and hint in str(caught.value)


def test_errors_of_a_file_name_its_line(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)ZeroDivisionError.*mine\.py:6") as caught:
        POLICIES.find("mine.py:Mine(every=0)")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    (tmp_path / "late.py").write_text("x = 1\ny = z\n")
    with pytest.raises(ConfigError, match=r"(?s)late\.py cannot be loaded: NameError.*late\.py:2"):
        POLICIES.find("late.py:Mine")
    (tmp_path / "wrong.py").write_text("x = 1\n\ny = (\n")
    with pytest.raises(ConfigError, match=r"(?s)SyntaxError.*wrong\.py:3"):
        POLICIES.find("wrong.py:Mine")


class Base(ABC):
    @abstractmethod
    def act(self):
        """Act."""


class Half(Base):
    pass


class Failing(Half):
    def act(self):
        pass

    def __init__(self):
        raise KeyError("of the class")


def test_abstract_classes_and_failing_constructors_are_named():
    types = NamedTypes(Base, "kind of act", "act", {"Half": Half, "Failing": Failing})
    with pytest.raises(ConfigError, match="act Half has no method act"):
        types.find("Half")
    with pytest.raises(ConfigError, match="act Failing: KeyError"):
        types.find("Failing")
    with pytest.raises(ConfigError, match="no kind of act is called 'Third'"):
        types.find("Third")
