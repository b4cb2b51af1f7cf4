"""Philox4x32-10 gives the published words, and the same ones from numpy and from every instruction set."""

import numpy as np
import pytest

from samebits import native
from samebits.numerics.elementary.philox import philox_blocks, philox_uint32, philox_uint32_native

# Known answers of Random123 for philox4x32, 10 rounds: counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]) -> None:
    actual = philox_blocks(np.array([counter], np.uint32), np.array(key, np.uint32))[0]
    assert [hex(word) for word in actual] == [hex(word) for word in words]


def test_a_wrong_key_is_noticed() -> None:
    """Planted fault: the halves of the key exchanged."""
    counter, key, words = KNOWN[2]
    assert philox_blocks(np.array([counter], np.uint32), np.array(key[::-1], np.uint32))[0].tolist() != list(words)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 4096, 50_003])
def test_numpy_and_cpp_draw_the_same_words(count: int) -> None:
    expected = philox_uint32(0x0123456789ABCDEF, 7, count)
    assert expected.shape == (count,) and expected.dtype == np.uint32
    for instruction_set in native.instruction_sets():
        for threads in (1, 3):
            actual = philox_uint32_native(0x0123456789ABCDEF, 7, count, instruction_set, threads)
            assert np.array_equal(actual, expected)


def test_streams_and_prefixes() -> None:
    """A longer draw begins with the shorter one; another stream or seed is another sequence."""
    words = philox_uint32(5, 1, 1000)
    assert np.array_equal(words[:37], philox_uint32(5, 1, 37))
    assert not np.array_equal(words, philox_uint32(5, 2, 1000))
    assert not np.array_equal(words, philox_uint32(5 + (1 << 32), 1, 1000))


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seed must be in 0\.\.18446744073709551615, got seed=-1"):
        philox_uint32(-1, 0, 1)
    with pytest.raises(ValueError, match="stream must be in"):
        philox_uint32_native(0, 1 << 32, 1)
