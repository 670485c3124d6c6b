"""What a server that was killed in an upload has left: deleted after a day, and nothing that still grows."""

import os
import time
from pathlib import Path

from leasekeeper.service.uploads import FOLDER, LEFT_SECONDS
from tests.runtime.stage import until
from tests.serving import ServerThread


def test_a_server_deletes_unfinished_uploads_that_are_a_day_old(
    server: ServerThread, sqlite_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    left, grows = folder / "left", folder / "grows"
    for path in (left, grows):
        path.write_bytes(b"half of a screenshot")
    long_ago = time.time() - LEFT_SECONDS - 1
    os.utime(left, (long_ago, long_ago))

    async def deleted() -> bool:
        return not left.exists()

    served = server.serve(sqlite_url, data_dir=str(tmp_path))
    try:
        served.run(until(deleted))
    finally:
        served.close()
    assert grows.exists()
