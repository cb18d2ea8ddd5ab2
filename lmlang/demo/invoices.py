"""P1: thirty texts as a scanner leaves them, to typed records behind one instruction."""

from __future__ import annotations

import datetime
import random
from typing import Annotated, Literal

from pydantic import BaseModel, Field

import lmlang as lm
from lmlang.demo.say import Say
from lmlang.protocol import Usage

ROWS = 30
_SELLERS = ("Hansen & Co", "ACME GmbH", "Blue Door Ltd", "Papeterie Morel", "Kiosk 24")
_GOODS = ("paper A4", "toner", "desk lamp", "coffee 1kg", "cable 3m", "envelopes")


class Line(BaseModel):
    """One line of an invoice."""

    item: Annotated[str, Field(max_length=24)]
    amount: Annotated[float, Field(ge=0, le=99999)]


class Invoice(BaseModel):
    """What is read out of an invoice."""

    vendor: Annotated[str, Field(max_length=60)]
    date: datetime.date
    currency: Literal["EUR", "USD", "GBP", "CHF"]
    lines: Annotated[list[Line], Field(min_length=1, max_length=20)]
    total: Annotated[float, Field(ge=0)]


@lm.function
def invoice(s: lm.ProgramState, text: str) -> Invoice:
    """The record of one invoice."""
    s += lm.system(
        "You read invoices that were scanned. Write down the vendor, the date as YYYY-MM-DD, the "
        "currency, every line with its amount, and the total. Write nothing that is not there."
    )
    s += lm.user(text)
    s += lm.assistant(lm.gen("invoice", type=Invoice, max_tokens=160))
    found: Invoice = s["invoice"]
    return found


def texts(count: int = ROWS) -> list[str]:
    """Invoices as a scanner leaves them; the same ones every time."""
    draws = random.Random(1)
    found = []
    for number in range(count):
        lines = [(draws.choice(_GOODS), draws.randint(1, 90)) for _ in range(draws.randint(1, 3))]
        day = f"2024-{draws.randint(1, 12):02}-{draws.randint(1, 28):02}"
        currency = draws.choice(("EUR", "USD", "GBP", "CHF"))
        body = "\n".join(f"{item} ... {amount}.00" for item, amount in lines)
        total = sum(amount for _, amount in lines)
        seller = draws.choice(_SELLERS)
        head = f"{seller.upper()}\nlnvoice no {number + 100}  {day}"
        found.append(f"{head}\n{body}\nTOTAL {currency} {total}.00")
    return found


def run(runtime: lm.Runtime, say: Say) -> None:
    """Six of them, with what the runtime did."""
    rows = [{"text": text} for text in texts(6)]
    forecast = invoice.estimate(rows, backend=runtime)
    result = invoice.run_batch(rows, backend=runtime, temperature=0)
    for state in result:
        found = state.ret_value
        say(f"{found.vendor:<24} {found.date}  {found.currency} {found.total:>10.2f}")
    say("")
    say(forecast.beside(sum((state.usage() for state in result), Usage())))
