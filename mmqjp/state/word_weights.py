"""The table of weights of words of a store (`xscl.algebra.weights`): GENERAL, or a file in the state directory, which
`mmqjp words learn` made, and which a script chose by DECLARE WEIGHTS before the first query. A setting has its name and
version, and a store is not opened with another table."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from common.errors import InvalidValue
from common.files import make_inside, sync_directory, sync_file
from join_stage.store.protocol import StoreError
from mmqjp.tables.schema import Ledger
from xscl.algebra.weights import GENERAL, WordWeights, chosen_weights, general_weights, hold_weights, open_weights

_SETTING = _FOLDER = "weights"


class StoreWeights:
    """Holds the table of a store; without a directory, whichever others hold. Raises StoreError if the table is not
    that of the store, or if another store that this process has open has another one."""

    def __init__(self, directory: Path | None, ledger: Ledger) -> None:
        self._directory, self._ledger = directory, ledger
        try:
            self._release = hold_weights(None if directory is None else self._stored())
        except InvalidValue as error:
            raise StoreError(str(error)) from error

    def choose(self, name: str) -> Callable[[], None]:
        """Saves another table by name. Returns what takes it back. Raises InvalidValue if there is none."""
        before, table = chosen_weights(), general_weights() if name == GENERAL else self._opened(name)
        self.release()
        try:
            self._release = hold_weights(table)
            self._ledger.save_settings({_SETTING: json.dumps({"name": name, "version": table.version})})
        except BaseException:
            self._release = hold_weights(before)
            raise

        def take_back() -> None:
            self.release()
            self._release = hold_weights(before)

        return take_back

    def release(self) -> None:
        """Idempotent."""
        self._release()
        self._release = lambda: None

    def _opened(self, name: str) -> WordWeights:
        known: list[str] = []
        if self._directory is not None:
            path = weights_path(self._directory, name)
            if path.exists():
                return open_weights(path)
            known = sorted(other.stem for other in path.parent.glob("*.weights"))
        names = ", ".join([GENERAL, *known])
        hint = f"mmqjp words learn {name} makes one for a store" if self._directory else "only a state can have others"
        raise InvalidValue(f"there is no table of weights {name}, only {names}: {hint}")

    def _stored(self) -> WordWeights:
        noted = self._ledger.setting(_SETTING)
        chosen = {"name": GENERAL} if noted is None else json.loads(noted)
        name, version = chosen["name"], chosen.get("version")
        if name == GENERAL:
            table = general_weights()
            message = (
                f"this version of mmqjp has another table of weights {name}: install the version that wrote the store"
            )
        else:
            path = weights_path(self._directory or Path(), name)
            message = f"{path} is not the table of weights by which this store was written: put that back, from a copy"
            try:
                table = open_weights(path)
            except FileNotFoundError:
                raise StoreError(
                    f"{path} is gone, by which this store weighs words: put it back, from a copy"
                ) from None
            except (OSError, InvalidValue) as error:
                raise StoreError(f"{path} cannot be read: {error}") from error
        if version is not None and table.version != version:
            raise StoreError(message)
        return table


def weights_path(state: Path, name: str) -> Path:
    return state / _FOLDER / f"{name}.weights"


def save_weights(state: Path, name: str, table: bytes) -> Path:
    """Writes a table of a new name. Raises InvalidValue if there is one of this name, and OSError."""
    path = weights_path(state, name)
    if name == GENERAL or path.exists():
        raise InvalidValue(f"there is a table of weights {name}: a table keeps its name, so choose another one")
    draft = make_inside(state, _FOLDER) / f"{name}.draft"
    try:
        with draft.open("wb") as file:
            file.write(table)
            file.flush()
            sync_file(file.fileno())
        os.link(draft, path)  # unlike a rename, it overwrites nothing
    except FileExistsError:
        raise InvalidValue(f"there is a table of weights {name}: choose another name") from None
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()
    sync_directory(path.parent)
    return path
