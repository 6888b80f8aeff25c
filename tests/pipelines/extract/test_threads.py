"""PDFs are read in threads where stages run without processes of their own; pdfium itself crashes then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.pipelines.extract import made

READ = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from perdure.pipelines.extract import open_reader

def words(_):
    with open_reader(Path(sys.argv[1])) as reader:
        return sum(reader.read(page).words for page in reader.parts)

with ThreadPoolExecutor(8) as threads:
    print(len(set(threads.map(words, range(800)))))
"""


def test_many_threads_read_the_same(tmp_path: Path) -> None:
    pdf = tmp_path / "short.pdf"
    pdf.write_bytes(made.long_pdf(1, 30))  # threads collide most often where a document is opened and closed

    command = [sys.executable, "-c", READ, str(pdf)]
    read = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert (read.returncode, read.stdout.strip()) == (0, "1"), read.stderr[-500:]
