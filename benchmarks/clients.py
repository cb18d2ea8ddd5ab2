"""Clients of a server that speaks OpenAI's interface, in a process of their own.

Reads loads, one a line of JSON, from its input, and answers each by a line: for every client, every
one of its requests as [[seconds at which it was asked, and its pieces came], text].

    {"url": …, "model": …, "tokens": …, "clients": [{"after": seconds, "prompts": [text, …]}, …]}
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import httpx

Answer = tuple[list[float], str]


async def ask(client: httpx.AsyncClient, load: dict[str, Any], prompt: str, begun: float) -> Answer:
    """One streamed completion."""
    body = {
        "model": load["model"],
        "prompt": prompt,
        "max_tokens": load["tokens"],
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    stamps, text = [time.perf_counter() - begun], ""
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.is_error:
            raise SystemExit((await answer.aread()).decode())
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            value = json.loads(line[6:])
            if "error" in value:
                raise SystemExit(line)
            stamps.append(time.perf_counter() - begun)
            text += "".join(choice["text"] for choice in value["choices"])
    return stamps, text


async def run(load: dict[str, Any]) -> list[list[Answer]]:
    """All clients of a load; each asks one thing after the other, on a connection of its own.

    Some servers close connections that others keep, without saying so.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=load["url"], timeout=600, limits=limits) as client:
        begun = time.perf_counter()

        async def one(each: dict[str, Any]) -> list[Answer]:
            await asyncio.sleep(each["after"])
            return [await ask(client, load, prompt, begun) for prompt in each["prompts"]]

        return list(await asyncio.gather(*map(one, load["clients"])))


if __name__ == "__main__":
    for read in sys.stdin:
        print(json.dumps(asyncio.run(run(json.loads(read)))), flush=True)
