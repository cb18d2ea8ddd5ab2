"""Which tokens a step draws: a draw for each sequence that needs one, and for each of its draft."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lmlang.errors import LMLangError, ProgramError
from lmlang.grammar.masks import Mask
from lmlang.protocol import Request
from lmlang.runtime.output import Drawn
from lmlang.runtime.predictions import MaskArray
from lmlang.runtime.sampler import Draw
from lmlang.runtime.sequence import GenerateTask, Sequence


class Drawing(NamedTuple):
    """What is drawn for one sequence.

    Args:
        sequence: Whose tokens.
        task: Its task.
        row: Of the model's logits, for the first draw.
        draws: Its next token, and those behind each token of the draft.
        draft: Tokens that were guessed.
    """

    sequence: Sequence
    task: GenerateTask
    row: int
    draws: list[Draw]
    draft: tuple[int, ...] = ()

    def from_row(self, row: int) -> Drawing:
        """The same from another row of logits; it has no draft."""
        return self._replace(draws=[self.draws[0]._replace(row=row)])


def drawing_of(
    row: int, sequence: Sequence, task: GenerateTask, draft: tuple[int, ...] = ()
) -> Drawing:
    """The draws of a sequence's next token, and of those behind each token of a draft.

    Raises:
        GrammarDeadEnd: No token at all can come next.
    """
    request, output = task.request, task.output
    mask = None
    if output.constraint is not None:
        first = draft or not is_drawn_first(task)
        mask = output.constraint.mask() if first else output.constraint.made_mask()
    masks = [mask] * (len(draft) + 1)
    if draft and output.constraint is not None:
        masks = [mask, *output.constraint.masks_behind(draft)]
        draft = draft[: len(masks) - 1]
    if output.is_free and not draft:
        free = Draw(
            row,
            request.params,
            request.draw_key,
            len(output.ids),
            sequence.prompt,
            sequence.generated,
            probs=request.probs,
            top=request.top_logprobs if request.probs else 0,
            mask=bits_of(mask),
        )
        return Drawing(sequence, task, row, [free])
    draws = [
        Draw(
            row + ahead,
            request.params,
            request.draw_key,
            len(output.ids) + ahead,
            sequence.prompt,
            [*sequence.generated, *draft[:ahead]] if ahead else sequence.generated,
            output.barred(),
            output.allowed(),
            request.probs,
            request.top_logprobs if request.probs else 0,
            bits_of(mask),
        )
        for ahead, mask in enumerate(masks)
    ]
    return Drawing(sequence, task, row, draws, draft)


def bits_of(mask: Mask | None) -> MaskArray | None:
    """What a draw wants of a mask."""
    return None if mask is None else mask.bits


def is_drawn_first(task: GenerateTask) -> bool:
    """Whether a token is drawn of all and then judged: the one that a mask would have left, too.

    Each token has noise of its own, so what wins among all wins among those that are legal. Where
    others are cut away before, or counted, they have to be the legal ones.
    """
    params = task.request.params
    if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
        return False
    return not (task.request.probs or task.request.provenance)


def processed(logits: Tensor, drawing: Drawing) -> Tensor:
    """A row of logits, float32 [V], after the program's own function has changed it.

    Args:
        logits: float32 [K, V]; not written.
        drawing: Of a request that has such a function.

    Raises:
        ProgramError: The function raised, or returned no such row.
    """
    processor = drawing.task.request.processor
    assert processor is not None
    row = logits[drawing.row].clone()
    try:
        changed = processor(tuple(drawing.task.output.ids), row)
    except LMLangError:
        raise
    except BaseException as error:  # the thread is everybody's: not even exits go through it
        try:
            said = f": {str(error)[:200]}" if str(error) else ""
        except Exception:
            said = ""
        raise ProgramError(f"logits_processor raised {type(error).__name__}{said}.") from error
    changed = row if changed is None else changed
    if not isinstance(changed, Tensor) or changed.shape != row.shape:
        what = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
        raise ProgramError(
            f"logits_processor returned {what}: return a tensor of {len(row):,} logits, or None "
            "after changing the one it was given."
        )
    changed = changed.to(row)
    if bool(torch.isnan(changed).any()) or bool((changed == float("inf")).any()):
        raise ProgramError(
            "logits_processor returned NaN or +infinity: -infinity alone is allowed."
        )
    if bool(torch.isinf(changed).all()):
        raise ProgramError("logits_processor left no token at all: every logit is -infinity.")
    return changed


def known(token: int, request: Request) -> Drawn:
    """A token that came without a draw, told as the only one that could be drawn."""
    if not request.probs:
        return Drawn(token)
    return Drawn(token, 1.0, ((token, 1.0),) if request.top_logprobs else ())


def standing(drawn: Drawn, task: GenerateTask, index: int | None = None) -> Drawn | None:
    """The token of this place, where it was received before and another has been drawn now.

    What a model says of a token may differ in its last bits with what else is computed beside it.
    """
    resumed = task.request.resumed
    index = len(task.output.ids) if index is None else index
    if index >= len(resumed) or resumed[index] == drawn.token:
        return None
    return Drawn(resumed[index])
