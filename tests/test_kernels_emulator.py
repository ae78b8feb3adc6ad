# SPDX-License-Identifier: Apache-2.0
"""The emulated machine finds each fault of small kernels made to have it, in every schedule."""

import pytest
from emulator import POLICIES
from emulator.build import FINDING, HERE, compile_program, run_program

RACE = "race, read after write|race, write after read"  # by schedule
FINDINGS = {
    "no_block_barrier": RACE,
    "no_warp_barrier": RACE,
    "vote_for_a_barrier": RACE,
    "write_after_read": RACE,
    "two_writers": "race, write after write",
    "barriers_apart": "wait in sync_block",
    "half_a_warp_votes": "have left the kernel|left the kernel while",
    "gone_before_the_barrier": "have left the kernel|left the kernel while",
    "waits_for_ever": "waits for ever",
    "written_twice": "once more",
    "output_read": "reads element",
    "input_written": "writes element",
    "past_the_input": "memory that is not the call's",
    "past_the_array": f"out of bounds|{RACE}",
    "copy_not_waited_for": "copy under way",
    "copy_of_another_lane": f"copy under way|{RACE}",
    "copy_left_behind": "leaves the kernel with copies under way",
    "vector_not_aligned": "not aligned|misaligned",
    "input_read_too_early": "reads the input before wait_for_producer",
    "output_written_too_early": "writes the output before wait_for_producer",
    "copied_too_early": "reads the input before wait_for_producer",
    "other_block_too_early": "which may not have started",
    "other_block_has_ended": "which has ended",
    "block_barrier_for_a_cluster": f"{RACE}",
    "arrived_too_early": "race, write after write",
    "waits_before_it_arrives": "has not arrived",
    "arrives_twice": "has not waited since it arrived",
    "half_a_warp_arrives": "have left the kernel|left the kernel while",
    "never_arrives": "have left the kernel|left the kernel while|waits for ever",
    "no_such_block": "of no block",
}
SOUND = (
    "nothing", "nothing_with_copies", "nothing_with_clusters", "nothing_in_one_of_a_cluster",
)  # fmt: skip
ADDRESS_FINDINGS = ("past_the_input", "past_the_array", "waits_for_ever", "barriers_apart")


def run(check: str, name: str, policy: str) -> tuple[int, str]:
    program = compile_program(HERE / "faults.cpp", check).result()
    done = run_program(program, name, str(POLICIES.index(policy)))
    return done.returncode, done.stderr


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", FINDINGS)
def test_a_fault_is_found(name, policy):
    code, text = run("races", name, policy)
    assert code == FINDING, text
    assert any(words in text for words in FINDINGS[name].split("|")), text


@pytest.mark.parametrize("name", ADDRESS_FINDINGS)
def test_a_fault_is_found_under_address_sanitizer(name):
    code, text = run("address", name, "random")
    assert code == FINDING, text


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("check", ["races", "address"])
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_kernel_passes(name, check, policy):
    assert run(check, name, policy) == (0, "")


def test_every_fault_is_asked_for():
    program = compile_program(HERE / "faults.cpp", "races").result()
    names = run_program(program).stdout.split()
    assert set(names) == {*FINDINGS, *SOUND}
