from datetime import datetime
from os import PathLike
from typing import Any, Dict, Iterator, List, Literal, Optional, Sequence, Tuple, Union, final

__all__ = [
    "Error",
    "EventClass",
    "Losses",
    "Process",
    "RequestError",
    "Rows",
    "Table",
    "Trace",
    "TraceError",
    "open",
]

_Time = Union[int, str, datetime]
_Names = Union[str, Sequence[str]]

class Error(Exception): ...
class TraceError(Error): ...
class RequestError(Error): ...

def open(path: Union[str, "PathLike[str]"]) -> Trace: ...
@final
class Trace:
    @property
    def classes(self) -> List[EventClass]: ...
    @property
    def losses(self) -> Losses: ...
    @property
    def processes(self) -> List[Process]: ...
    def events(
        self,
        events: Optional[_Names] = None,
        *,
        columns: Optional[_Names] = None,
        where: Optional[_Names] = None,
        since: Optional[_Time] = None,
        until: Optional[_Time] = None,
        text: Literal["str", "bytes"] = "str",
        strict: bool = False,
    ) -> Table: ...
    def pairs(
        self,
        begin: str,
        end: str,
        *,
        key: Optional[_Names] = None,
        where: Optional[_Names] = None,
        since: Optional[_Time] = None,
        until: Optional[_Time] = None,
        strict: bool = False,
    ) -> Table: ...

@final
class EventClass:
    @property
    def name(self) -> str: ...
    @property
    def fields(self) -> Dict[str, str]: ...

@final
class Losses:
    @property
    def count(self) -> int: ...
    @property
    def by_class(self) -> Dict[str, int]: ...
    @property
    def possible(self) -> List[Tuple[str, int]]: ...
    @property
    def warnings(self) -> List[str]: ...

@final
class Process:
    @property
    def pid(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def program(self) -> str: ...
    @property
    def events(self) -> Optional[int]: ...

@final
class Table:
    @property
    def columns(self) -> List[str]: ...
    @property
    def types(self) -> Dict[str, str]: ...
    @property
    def warnings(self) -> List[str]: ...
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: Optional[object] = None) -> object: ...
    def __iter__(self) -> Iterator[Dict[str, Any]]: ...

@final
class Rows:
    def __iter__(self) -> Rows: ...
    def __next__(self) -> Dict[str, Any]: ...
