"""`tasks:app` → the App in the user's file, with a clear error for everything that can be wrong with it."""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import leasekeeper
from leasekeeper.errors import InputError

if TYPE_CHECKING:
    from leasekeeper.app import App


def load_app(target: str) -> "App":
    """Import MODULE:NAME (NAME defaults to `app`), looking in the current directory first."""
    from leasekeeper.app import App

    module_name, _, name = target.partition(":")
    if not module_name or module_name.endswith(".py"):
        better = module_name.removesuffix(".py").replace("/", ".") or "tasks"
        raise InputError(f"{target!r} does not name an app; write it as {better}:{name or 'app'}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise InputError(f"{module_name} could not be imported: {error}{_place(error)}") from error
        raise InputError(f"there is no module {module_name} here ({here}); run this where your file is") from None
    except Exception as error:
        kind = type(error).__name__
        raise InputError(f"{module_name} could not be imported: {kind}: {error}{_place(error)}") from error
    app = getattr(module, name or "app", None)
    if isinstance(app, App):
        return app
    found = [key for key, value in vars(module).items() if isinstance(value, App)]
    hint = f"; did you mean {module_name}:{found[0]}?" if found else "; it needs a line such as app = App()"
    raise InputError(f"{module_name} has no App named {name or 'app'}{hint}")


def _place(error: Exception) -> str:
    """Where an import failed, as ` (tasks.py:7)`: the innermost line that is neither the importing's nor our own.

    A file that is not Python has no such line, but says itself where it is wrong.
    """
    from traceback import extract_tb

    own = (*(f"{Path(str(package.__file__)).parent}/" for package in (leasekeeper, importlib)), "<frozen importlib")
    places = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    if not places:
        return ""
    path = Path(places[-1].filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" ({shown}:{places[-1].lineno})"
