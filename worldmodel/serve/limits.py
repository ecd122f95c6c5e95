"""What one server and one session may use."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds that keep one client from harming the others, or the machine."""

    sessions: int = 4
    idle: float = 1800.0  # seconds without any sign of a person or a program
    resume: float = 20.0  # seconds that a session waits for its client after a broken connection
    greeting: float = 10.0  # seconds from connecting to hello
    requests: int = 32  # that wait for the engine
    queue: int = 3  # chunks that wait to be sent
    replay: int = 50_000  # chunks that a replay file holds
    video: int = 60_000  # pictures of one recording
    memory: int = 2 * 1024**3  # bytes of a session's memory
