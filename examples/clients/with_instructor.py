"""Instructor: pip install instructor"""

import sys
from typing import Literal

import instructor
import openai
import pydantic


class Numbers(pydantic.BaseModel):
    a: Literal[1, 2]
    b: Literal[3]


plain = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
asked = [{"role": "user", "content": "Which numbers are in: one and three?"}]
for name, mode in (("tools", instructor.Mode.TOOLS), ("structured", instructor.Mode.JSON_SCHEMA)):
    client = instructor.from_openai(plain, mode=mode)
    found = client.chat.completions.create(model=sys.argv[2], messages=asked, response_model=Numbers, max_retries=0)
    print(f"ok {name}:", found)
