"""The drafter is right: taps, one Qwen3 layer, no leak, training equals decoding, packing changes nothing."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

from dflash.attention import AttentionPlan, attend, attend_reference
from dflash.batch import Batch
from dflash.decode import DraftContext
from dflash.drafter import target_layer_ids
from dflash.step import weighted_loss
from tests.dflash.helpers import (
    HIDDEN,
    VOCAB,
    batch_of,
    features_of,
    logits_of,
    random_document,
    row_of,
    tiny_drafter,
    tiny_shape,
    tiny_target,
)


@pytest.mark.parametrize(
    ("layers", "taps", "ids"),
    [(30, 5, (1, 8, 14, 20, 27)), (36, 5, (1, 9, 17, 25, 33)), (32, 5, (1, 8, 15, 22, 29)), (30, 1, (15,))],
)
def test_taps_are_the_released_drafters(layers: int, taps: int, ids: tuple[int, ...]) -> None:
    assert target_layer_ids(layers, taps) == ids


def test_taps_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        target_layer_ids(5, 4)


def test_tap_is_the_output_of_that_layer_before_any_norm() -> None:
    target = tiny_target()
    tokens = torch.tensor([random_document(9, 0, 3)[0]])
    seen: dict[int, torch.Tensor] = {}
    handles = [
        layer.register_forward_hook(
            lambda _m, _a, out, i=i: seen.__setitem__(i, out[0] if isinstance(out, tuple) else out)
        )
        for i, layer in enumerate(target.decoder.layers)
    ]
    target.model(tokens)
    for handle in handles:
        handle.remove()
    last = len(target.decoder.layers) - 1
    _, features = target.run(tokens, (1, last), use_cache=False)
    assert torch.equal(features[..., :HIDDEN], seen[1])
    assert torch.equal(features[..., HIDDEN:], seen[last])
    hidden_states = target.model(tokens, output_hidden_states=True).hidden_states
    assert torch.equal(features[..., :HIDDEN], hidden_states[2])  # entry 0 is the embedding
    assert not torch.allclose(features[..., HIDDEN:], hidden_states[-1])  # transformers' last entry is normed


def test_without_context_a_layer_equals_transformers_qwen3_layer_without_causality() -> None:
    shape = tiny_shape()
    drafter = tiny_drafter(shape)
    config = shape.qwen3_config()
    config._attn_implementation = "eager"
    theirs = Qwen3DecoderLayer(config, 0)
    theirs.load_state_dict(drafter.layers[0].state_dict())
    hidden = torch.randn(1, 6, HIDDEN, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(3, 9)[None]
    rotary = Qwen3RotaryEmbedding(config)(hidden, positions)
    wanted = theirs(hidden, attention_mask=None, position_embeddings=rotary)
    nothing = torch.zeros(1, shape.num_key_value_heads, 0, shape.head_dim)
    plan = AttentionPlan("sdpa", torch.ones(1, 1, 6, 6, dtype=torch.bool))
    got = drafter.layers[0](hidden, (nothing, nothing), drafter.rotary_emb(hidden, positions), plan)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_five_layers_have_the_58_serving_tensors() -> None:
    names = tiny_drafter(tiny_shape(num_layers=5)).state_dict().keys()
    assert len(names) == 58
    assert {"fc.weight", "hidden_norm.weight", "norm.weight", "layers.4.self_attn.k_norm.weight"} <= set(names)


def test_sdpa_equals_the_double_loop_forward_and_gradient() -> None:
    target, shape = tiny_target(), tiny_shape()
    row = row_of(random_document(9, 2, 0), random_document(7, 2, 1), row_tokens=18)
    batch = batch_of(row, [3, 6, 11], slots=4)
    features = features_of(target, batch, shape)
    results = []
    for kind in ("sdpa", "reference"):
        drafter = tiny_drafter(shape)
        plan = AttentionPlan(kind, logits_plan_mask(batch))
        loss = loss_with_plan(drafter, target, batch, features, plan)
        loss.backward()
        results.append((loss.detach(), {name: p.grad for name, p in drafter.named_parameters()}))
    (fast, fast_grad), (slow, slow_grad) = results
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)
    for name in slow_grad:
        torch.testing.assert_close(fast_grad[name], slow_grad[name], rtol=1e-3, atol=1e-5, msg=name)


def logits_plan_mask(batch: Batch) -> torch.Tensor:
    from tests.dflash.helpers import plan_of

    return plan_of(batch).mask


def loss_with_plan(drafter, target, batch: Batch, features: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    from dflash.step import drafter_step

    return drafter_step(
        drafter,
        target.embedding_weight,
        target.head_weight,
        features,
        batch.positions,
        batch.block_tokens,
        batch.block_positions,
        batch.labels,
        batch.weights,
        plan,
    ).loss


def test_reference_attention_is_softmax_over_what_is_seen() -> None:
    q = torch.tensor([[[[2.0, 0.0]]]])
    k = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]]])
    v = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]]])
    mask = torch.tensor([[[[True, True, False]]]])
    first = torch.softmax(torch.tensor([2.0, 0.0]) / 2**0.5, 0)
    torch.testing.assert_close(attend_reference(q, k, v, mask)[0, 0, 0], first)
    torch.testing.assert_close(attend(q, k, v, AttentionPlan("sdpa", mask))[0, 0, 0], first)


def test_an_unused_slot_gives_finite_logits_and_no_gradient() -> None:
    target, drafter = tiny_target(), tiny_drafter()
    row = row_of(random_document(9, 2, 0), row_tokens=12)
    used, unused = batch_of(row, [3], slots=1), batch_of(row, [3], slots=3)
    features = features_of(target, used, drafter.shape)
    assert logits_of(drafter, target, unused, features).isfinite().all()
    gradients = []
    for batch in (used, unused):
        drafter.zero_grad()
        weighted_loss(logits_of(drafter, target, batch, features), batch.labels, batch.weights).backward()
        gradients.append(drafter.fc.weight.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_training_logits_equal_the_cached_decoders_after_the_same_prefix(which: str) -> None:
    """The row's second document, so that packing, positions and the strict bound all matter."""
    target, drafter = tiny_target(), tiny_drafter()
    tokens, prompt_length = random_document(24, 6, 5)
    offset = 11
    row = row_of(random_document(offset, 3, 4), (tokens, prompt_length), row_tokens=48)
    places = {"first": prompt_length, "middle": 14, "last": len(tokens) - 2}
    batch = batch_of(row, sorted(offset + place for place in places.values()), slots=5)
    slot = sorted(places.values()).index(places[which])
    trained = logits_of(drafter, target, batch, features_of(target, batch, drafter.shape))[0, slot]

    context, cache = DraftContext(drafter), DynamicCache(config=target.config)
    prefix = tokens[: places[which]]
    for chunk in (prefix[:4], *[[token] for token in prefix[4:]]):  # a prompt, then token by token
        _, features = target.run(
            torch.tensor([chunk]), drafter.shape.target_layer_ids, past_key_values=cache, use_cache=True
        )
        context.extend(features)
    decoded = context.draft_logits(tokens[places[which]], target.embedding_weight, target.head_weight)
    torch.testing.assert_close(trained, decoded, rtol=1e-4, atol=1e-4)


def leak_case() -> tuple:
    target, drafter = tiny_target(), tiny_drafter()
    row = row_of(random_document(12, 3, 0), random_document(12, 3, 1), row_tokens=28)
    batch = batch_of(row, [5, 16, 20], slots=4)
    return target, drafter, batch, features_of(target, batch, drafter.shape)


def test_changing_any_feature_that_may_not_be_seen_leaves_the_logits_bit_equal() -> None:
    target, drafter, batch, features = leak_case()
    before = logits_of(drafter, target, batch, features)
    for place in [*range(12), *range(16, 28)]:  # for slot 1 (anchor 16, second document): all but 12 … 15
        changed = features.clone()
        changed[0, place] += 3.0
        after = logits_of(drafter, target, batch, changed)
        assert torch.equal(after[0, 1], before[0, 1]), place


@pytest.mark.parametrize("place", [12, 15])
def test_changing_a_feature_below_the_anchor_changes_the_logits(place: int) -> None:
    target, drafter, batch, features = leak_case()
    changed = features.clone()
    changed[0, place] += 3.0
    before, after = logits_of(drafter, target, batch, features), logits_of(drafter, target, batch, changed)
    assert not torch.equal(after[0, 1], before[0, 1])


def test_tokens_after_the_anchor_and_other_blocks_are_not_seen() -> None:
    target, drafter, batch, features = leak_case()
    before = logits_of(drafter, target, batch, features)
    tokens = batch.block_tokens.clone()
    tokens[0, 0], tokens[0, 8] = 50, 51  # the anchors of the blocks left and right of slot 1
    others = replace(batch, block_tokens=tokens)
    assert torch.equal(logits_of(drafter, target, others, features)[0, 1], before[0, 1])
    assert not torch.equal(logits_of(drafter, target, others, features)[0, 0], before[0, 0])
    # Tokens of the row reach the drafter only through anchors, labels and features: make the batch again without them.
    row = row_of(random_document(12, 3, 0), random_document(12, 3, 1), row_tokens=28)
    row.tokens[17:] = 7
    again = batch_of(row, [5, 16, 20], slots=4)
    assert torch.equal(logits_of(drafter, target, again, features)[0, 1], before[0, 1])
    row.tokens[16] = 7
    assert not torch.equal(
        logits_of(drafter, target, batch_of(row, [5, 16, 20], slots=4), features)[0, 1], before[0, 1]
    )


def replace(batch: Batch, **changes: torch.Tensor) -> Batch:
    import dataclasses

    return dataclasses.replace(batch, **changes)


def test_a_row_of_three_documents_equals_the_weighted_sum_of_the_three_alone() -> None:
    target, shape = tiny_target(), tiny_shape()
    documents = [random_document(14, 4, 0), random_document(3, 1, 1), random_document(10, 2, 2)]  # one shorter than K
    anchors = [[4, 7, 12], [1], [2, 5]]
    starts = [0, 14, 17]
    drafter = tiny_drafter(shape)
    packed_row = row_of(*documents, row_tokens=32)
    packed = batch_of(packed_row, [s + a for s, own in zip(starts, anchors, strict=True) for a in own], slots=9)
    loss = weighted_loss(
        logits_of(drafter, target, packed, features_of(target, packed, shape)), packed.labels, packed.weights
    )
    loss.backward()
    gradient = {name: p.grad.clone() for name, p in drafter.named_parameters()}

    drafter.zero_grad()
    total = packed.weights.sum()
    summed = torch.zeros(())
    for document, own in zip(documents, anchors, strict=True):
        alone = batch_of(row_of(document, row_tokens=16), own, slots=5)
        one = weighted_loss(
            logits_of(drafter, target, alone, features_of(target, alone, shape)), alone.labels, alone.weights
        )
        share = alone.weights.sum() / total
        (one * share).backward()
        summed = summed + one.detach() * share
    torch.testing.assert_close(loss.detach(), summed, rtol=1e-5, atol=1e-6)
    for name, p in drafter.named_parameters():
        torch.testing.assert_close(p.grad, gradient[name], rtol=1e-3, atol=1e-5, msg=name)


def test_loss_of_two_small_blocks_by_hand() -> None:
    logits = torch.zeros(1, 2, 2, 3)
    logits[0, 0, 0] = torch.tensor([0.0, 2.0, 0.0])  # label 1
    logits[0, 1, 1] = torch.tensor([1.0, 0.0, 0.0])  # label 2
    labels = torch.tensor([[[1, 0], [2, 2]]])
    weights = torch.tensor([[[1.0, 0.0], [1.0, 0.5]]])
    e = 2.718281828459045
    ce = [
        -torch.log(torch.tensor(e**2 / (e**2 + 2))),
        torch.log(torch.tensor(3.0)),
        -torch.log(torch.tensor(1 / (e + 2))),
    ]
    wanted = (1.0 * ce[0] + 1.0 * ce[1] + 0.5 * ce[2]) / 2.5
    torch.testing.assert_close(weighted_loss(logits, labels, weights), wanted)


def test_loss_without_any_weight_is_zero_and_finite() -> None:
    logits = torch.randn(1, 2, 3, VOCAB, requires_grad=True)
    loss = weighted_loss(logits, torch.zeros(1, 2, 3, dtype=torch.int64), torch.zeros(1, 2, 3))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(logits.grad, torch.zeros_like(logits))
