"""Every type of the list runs on our pool as it does under transformers' eager attention."""

from __future__ import annotations

import pytest
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from lmlang.runtime.models.hf_refusals import Refused
from tests.models import zoo
from tests.models.paged import on_our_pool, rows_of, stepwise, whole

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
MARKED = [pytest.param(kind, marks=pytest.mark.hf) for kind in zoo.MORE]
MARKED_REFUSED = [pytest.param(kind, marks=pytest.mark.hf) for kind in zoo.MORE_REFUSED]


def need(kind: str) -> None:
    if why := zoo.missing(kind):
        pytest.skip(why)


@pytest.mark.parametrize("kind", [*zoo.RUNS, *MARKED])
def test_rows_in_pieces_and_together_are_as_each_is_whole(kind):
    need(kind)
    changes = (zoo.RUNS | zoo.MORE)[kind]
    model = on_our_pool(kind, **changes)
    plain = zoo.tiny_transformer(zoo.tiny_config(kind, **changes))
    rows = rows_of(model.vocab)
    for name, ours in stepwise(model, rows).items():
        exact = whole(plain, rows[name])[-len(ours) :]
        distance = (ours - exact).abs().max() / exact.abs().max()
        assert distance < 1e-4, name
    # What is compared depends on attention: before other tokens the last one has other logits.
    other = [*rows["c"][:-1][::-1], rows["c"][-1]]
    assert (whole(plain, other)[-1] - whole(plain, rows["c"])[-1]).abs().max() > 1e-2


@pytest.mark.parametrize("kind", [*zoo.REFUSED, *MARKED_REFUSED])
def test_what_cannot_run_right_is_refused_with_the_reason(kind):
    need(kind)
    reason, changes = (zoo.REFUSED | zoo.MORE_REFUSED)[kind]
    with pytest.raises(Refused, match=f"^{reason}"):
        on_our_pool(kind, **changes)


def test_types_stand_in_one_list_only():
    lists = (zoo.RUNS, zoo.MORE, zoo.REFUSED, zoo.MORE_REFUSED)
    kinds = [kind for kinds in lists for kind in kinds]
    assert len(kinds) == len(set(kinds))
    assert len(zoo.RUNS) >= 20
    assert len(zoo.MORE) >= 60


def test_all_types_are_ones_of_transformers():
    known = {config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING}
    assert set(zoo.RUNS) <= known
