# SPDX-License-Identifier: Apache-2.0
"""Reported faults, continued: extents, graphs, layouts, devices, as inputs for this op."""

import pytest
import torch
from graphs import StaticCall
from guards import POISON, Guarded, check
from scores import FIVE, INF, LOCAL, NAN, SINK_LOCAL, WIDE, Spec, draw, generator, tokens

from flashinfer_msa.msa_ops import msa_topk_select


def test_37_row_ends_below_zero(device):
    values = draw("normal", (1, 8, 4), device=device)
    output = check(values, 16, tokens([-1, 0, 1, 2], device), 0, 1)
    assert output[:, 0, :2].tolist() == [[-1, -1], [-1, -1], [0, -1], [0, 1]]


def test_38_the_extremes_of_int32_beside_normal_rows(device):
    values = draw("normal", (1, 500, 6), device=device)
    output = check(values, 16, tokens([300, -1, -(2**31), 40, 2**31 - 1, 500], device))
    assert output[1:3].eq(-1).all()
    assert torch.equal(output[4:], check(values, 16)[4:])


@pytest.mark.parametrize("blocks", [24, 160])
def test_40_mixed_extents_equal_one_call_each(device, blocks):
    extents = [*range(3, blocks + 1, 7), blocks + 1, 2 * blocks, 2**31 - 1, 0, -5]
    values = draw("quantised", (2, blocks, len(extents)), device=device)
    together = check(values, 16, tokens(extents, device), 1, 2)
    for s, n in enumerate(extents):
        if n <= 0:
            assert together[s].eq(-1).all()
        else:
            alone = check(values[..., s : s + 1].contiguous(), 16, min(n, blocks), 1, 2)
            assert torch.equal(together[s], alone[0])


def test_41_forced_windows_larger_than_the_extent(device):
    values = draw("normal", (1, 40, 5), device=device)
    output = check(values, 16, tokens([0, 1, 2, 3, 5], device), 2, 3)
    for n, row in zip([0, 1, 2, 3, 5], output[:, 0].tolist(), strict=True):
        assert row == [*range(n)] + [-1] * (16 - n)


def test_43_extents_past_the_blocks_while_warming_up(device):
    values = draw("normal", (4, 100, 16), device=device)
    dummy = torch.full((16,), 8192, dtype=torch.int32, device=device)
    assert torch.equal(check(values, 16, dummy, 0, 1), check(values, 16, None, 0, 1))


@pytest.mark.gpu
def test_44_a_thousand_replays_with_shrinking_extents_leave_no_slot_unwritten():
    case = StaticCall((4, 700, 12))
    graph = case.capture()
    unwritten = torch.zeros((), dtype=torch.int64, device="cuda")
    for n in range(1000, 0, -1):
        case.output.fill_(POISON)
        case.extents.fill_(n)
        graph.replay()
        unwritten += (case.output == POISON).sum()
        case.count_wrong()
    assert (unwritten.item(), case.wrong.item()) == (0, 0)


@pytest.mark.parametrize("blocks", [4097, 8192, 16_384, 16_385, 32_768])
def test_46_47_no_bound_on_the_number_of_blocks(device, blocks):
    values = torch.zeros(2, blocks, 2, device=device)
    marked = sorted({i for i in (4096, 8192) if i < blocks} | {blocks - 1})
    values[:, marked] = 1.0
    output = check(values, 16)
    assert output[1, 1].tolist() == [*range(16 - len(marked)), *marked]
    assert check(values, 16, tokens([blocks] * 2, device), 0, 1)[..., -1].eq(blocks - 1).all()


@pytest.mark.parametrize("layout", ["s_contiguous", "p_contiguous"])
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_49_short_rows_at_odd_addresses(device, offset, layout):
    for n in range(17, 21):
        values = draw("normal", (1, 33, 3), seed=n, device=device)
        extents = tokens([n] * 3, device)
        assert check(values, 16, extents, layout=layout, offset=offset).lt(n).all()


@pytest.mark.parametrize("blocks", [1023, 1024, 1025])
def test_51_sizes_round_a_thread_block(device, blocks):
    count = 1024 if device.type == "cuda" else 64
    check(draw("low_bits+quantised", (1, blocks, count), seed=blocks, device=device), 16)


@pytest.mark.parametrize("junk", [1e30, NAN, INF], ids=str)
def test_52_junk_in_the_tail_that_no_extent_reaches(device, junk):
    values = draw("normal", (2, 300, 9), device=device)
    values[:, 100:] = junk
    extents = tokens(range(20, 101, 10), device)
    assert check(values, 16, extents, 0, 1).lt(extents.view(-1, 1, 1)).all()


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_54_58_head_major_output_is_written_or_refused(device, heads):
    values = draw("normal", (heads, 60, 7), device=device)
    buffer = torch.full((heads, 7, 16), POISON, dtype=torch.int32, device=device)
    output = buffer.transpose(0, 1)
    try:
        msa_topk_select(values, 16, output=output)
    except ValueError:
        assert buffer.eq(POISON).all()
    else:
        assert torch.equal(output, check(values, 16))


def test_55_views_are_read_through_their_strides(device):
    base = draw("normal", (3, 50, 80), device=device)
    for view in (base.transpose(1, 2), base[:, 3:40], base[:1].expand(4, -1, -1), base[1:, :, 7:]):
        assert torch.equal(msa_topk_select(view, 16), check(view.contiguous(), 16))


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_57_no_store_runs_past_a_narrow_output(device, offset):
    check(draw("normal", (2, 60, 1), device=device), 1, offset=offset)
    check(draw("normal", (1, 60, 2), device=device), FIVE.topk, None, FIVE.begin, FIVE.end,
          offset=offset)  # fmt: skip


@pytest.mark.parametrize("heads", [3, 5, 6, 7])
def test_61_head_counts_that_are_no_power_of_two(device, heads):
    topk, _, begin, end = WIDE
    check(draw("quantised", (heads, 300, 9), device=device), topk, None, begin, end)


@pytest.mark.parametrize("blocks", [0, 1, 2, 15, 16, 17])
def test_65_the_result_never_narrows(device, blocks):
    output = check(draw("normal", (2, blocks, 3), device=device), 16)
    assert output.shape == (3, 2, 16)
    assert output.ge(0).sum() == 6 * min(16, blocks)


def test_66_topk_of_zero_is_a_clear_error(device):
    with pytest.raises(ValueError, match=r"topk.*1"):
        msa_topk_select(draw("normal", (2, 9, 3), device=device), 0)


def test_67_an_idle_rank_launches_nothing(device):
    for shape in [(4, 100, 0), (0, 100, 4), (4, 0, 4)]:
        output = check(torch.empty(shape, device=device), 16, None, 0, 1)
        assert output.shape == (shape[2], shape[0], 16)
        assert output.eq(-1).all()


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("blocks", [5, 64, 1000])
def test_68_selections_of_shards_merge_into_the_whole(device, ranks, blocks):
    """Each rank chooses among its blocks; the op merges what they send, in order of id."""
    values = draw("quantised", (2, blocks, 9), seed=ranks, device=device)
    size = -(-blocks // ranks)
    best, where = [], []
    for r in range(ranks):
        shard = values[:, r * size : (r + 1) * size].contiguous()
        local = msa_topk_select(shard, 16).long().permute(1, 2, 0)  # (H, topk, S)
        padded = torch.cat([shard, torch.full_like(values[:, :1], -INF)], dim=1)
        best.append(padded.gather(1, torch.where(local < 0, shard.shape[1], local)))
        where.append(torch.where(local < 0, -1, local + r * size))
    chosen = msa_topk_select(torch.cat(best, dim=1), 16).long().permute(1, 2, 0)
    merged = torch.cat(where, dim=1).gather(1, chosen.clamp(min=0))
    merged = torch.where(chosen < 0, -1, merged).permute(2, 0, 1)
    assert torch.equal(merged.int(), check(values, 16))


def test_69_heads_do_not_share_a_list(device):
    values = torch.zeros(4, 200, 3, device=device)
    for h in range(4):
        values[h, 50 * h : 50 * h + 16] = 1.0
    assert check(values, 16)[2].tolist() == [[*range(50 * h, 50 * h + 16)] for h in range(4)]


def test_77_scores_that_require_grad(device):
    values = draw("normal", (2, 60, 3), device=device)
    output = msa_topk_select(values.clone().requires_grad_(), 16)
    assert not output.requires_grad
    assert torch.equal(output, check(values, 16))


def test_78_extents_of_another_kind_are_refused(device):
    values = draw("normal", (2, 60, 4), device=device)
    wrong = [
        torch.ones(4, dtype=torch.int64, device=device),
        torch.ones(8, dtype=torch.int32, device=device)[::2],
        torch.ones(5, dtype=torch.int32, device=device),
        torch.ones(4, dtype=torch.int32, device="meta" if device.type == "cpu" else "cpu"),
    ]
    for extents in wrong:
        with pytest.raises(ValueError, match="num_valid_pages"):
            msa_topk_select(values, 16, extents)


@pytest.mark.gpu
def test_71_two_graphs_on_two_streams_for_a_thousand_rounds():
    cases = [StaticCall((4, 900, 24), seed=i) for i in range(2)]
    graphs = [case.capture() for case in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(1000):
        for case, graph, stream in zip(cases, graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                case.scores.mul_(-1)
                graph.replay()
                case.count_wrong()
    torch.cuda.synchronize()
    assert [case.wrong.item() for case in cases] == [0, 0]


@pytest.mark.gpu
def test_74_a_producer_just_before_and_a_reader_just_after():
    """Nothing may read before the producer has written, nor release a reader too early."""
    gen = generator(74, "cuda")
    for spec in (LOCAL, SINK_LOCAL):
        case = StaticCall((4, 256, 40), Spec(*spec))
        copies = []
        for _ in range(200):
            case.scores.normal_(generator=gen)
            case.extents.random_(-1, 300, generator=gen)
            case.call()
            copies.append((case.output.clone(), case.expected()))
        assert all(torch.equal(a, b) for a, b in copies)


def test_guard_words_do_notice_a_stray_write(device):
    """The instrument of these tests, tried on a planted fault."""
    guarded = Guarded.output((2, 1, 16), device)
    assert not guarded.guards_touched()
    assert guarded.unwritten()
    guarded.buffer[guarded.start - 1] = 0
    assert guarded.guards_touched()
