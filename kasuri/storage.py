"""What is written to files: objects as names and options, and files that are never half written."""

import contextlib
import glob
import inspect
import os
import secrets
import time
from pathlib import Path
from typing import Any, ClassVar

STALE = 3600.0  # seconds after which a temporary file belongs to nobody


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside the target, flush to disk, then rename; sweep up after killed writers."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into")
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > STALE:
                leftover.unlink()
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class Storable:
    """A class whose objects are stored as the name of the class and its options.

    Every subclass is known by its name from its definition on, so that families, priors, likelihoods and
    schedules of your own can be saved and loaded like those of the package.
    """

    known: ClassVar[dict[str, type["Storable"]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the class known."""
        super().__init_subclass__(**kwargs)
        other = Storable.known.get(cls.__name__)
        ours = "kasuri."
        if (
            other is not None
            and other.__module__.startswith(ours)
            and cls.__module__ != other.__module__
        ):
            raise TypeError(
                f"{other.__module__} has a class {cls.__name__} already, and files know classes by their "
                "names: choose another name"
            )
        Storable.known[cls.__name__] = cls

    def options(self) -> dict[str, Any]:
        """Constructor arguments that make an equal object: its attributes of the same names."""
        names = inspect.signature(type(self)).parameters
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    @classmethod
    def restored(cls, options: dict[str, Any]) -> Any:
        """The object with these options; the place to read options of older versions."""
        return cls(**options)


def describe(thing: Any) -> dict[str, Any]:
    """Class and options of a storable object, ready for JSON; options may be storable themselves.

    Examples:
        >>> import kasuri
        >>> describe(kasuri.HeNormal())
        {'class': 'HeNormal', 'options': {'gain': 2.0, 'bias_scale': 1.0}}
    """
    if not isinstance(thing, Storable):
        raise ValueError(
            f"{thing!r} cannot be written to a file, since it is a plain function or of a class that files "
            "do not know; make it a dataclass derived from kasuri.Family, or use one of kasuri's own"
        )
    options = {
        key: describe(value) if isinstance(value, Storable) else value
        for key, value in thing.options().items()
    }
    return {"class": type(thing).__name__, "options": options}


def build(description: dict[str, Any]) -> Any:
    """What was described.

    Examples:
        >>> import kasuri
        >>> build({"class": "HeNormal", "options": {"gain": 1.0}})
        HeNormal(gain=1, bias_scale=1)
    """
    name, options = description["class"], description["options"]
    if name not in Storable.known:
        raise KeyError(name)
    inner = {
        key: build(value)
        for key, value in options.items()
        if isinstance(value, dict) and value.keys() == {"class", "options"}
    }
    return Storable.known[name].restored(options | inner)
