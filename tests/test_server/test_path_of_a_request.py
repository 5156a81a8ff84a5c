"""How much of the house a request walks through: whoever follows one reads that many files."""

import threading
from pathlib import Path

import httpx

import runtime

FILES = 57  # a new file on the way needs a reason


def test_a_streamed_chat_enters_few_files(start, chat_bundle):
    entered, counting, root = set(), threading.Event(), str(Path(runtime.__file__).parent)

    def note(frame, event, _):
        if event == "call" and counting.is_set() and frame.f_code.co_filename.startswith(root):
            entered.add(frame.f_code.co_filename)

    threading.setprofile(note)  # of threads that start from here on
    try:
        server = start(chat_bundle)
        for _ in range(2):  # what the first request makes once is not on the way of the second
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": True}
            assert httpx.post(f"{server.url}/v1/chat/completions", json=body).text.endswith("data: [DONE]\n\n")
            server.wait_until_idle()
            counting.set()
    finally:
        threading.setprofile(None)
    assert 30 < len(entered) < FILES
