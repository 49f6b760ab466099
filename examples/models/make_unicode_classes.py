"""Prints unicode_classes.cpp: which code points are letters and which are numbers, by the regular expressions of `tokenizers`.

    pip install tokenizers
    python3 examples/models/make_unicode_classes.py | clang-format --assume-filename=examples/x.cpp > unicode_classes.cpp
"""

import sys

import tokenizers
from tokenizers import Regex, pre_tokenizers


def ranges(pattern):
    """First and last code points of the runs that match."""
    removes = pre_tokenizers.Split(Regex(pattern), "removed")
    first = None
    for code in range(sys.maxunicode + 2):
        is_character = code <= sys.maxunicode and not 0xD800 <= code <= 0xDFFF
        member = is_character and not removes.pre_tokenize_str(chr(code))
        if member and first is None:
            first = code
        elif not member and first is not None:
            yield first, code - 1
            first = None


def table(name, pattern):
    items = ", ".join(f"{{0x{first:x}, 0x{last:x}}}" for first, last in ranges(pattern))
    return f"constexpr Range {name}[] = {{{items}}};"


letters = table("kLetters", r"\p{L}")
numbers = table("kNumbers", r"\p{N}")
print(f"""// Written by make_unicode_classes.py with tokenizers {tokenizers.__version__}.
#include "unicode_classes.h"

#include <algorithm>
#include <iterator>

namespace models {{
namespace {{

struct Range {{
  char32_t first, last;
}};

{letters}

{numbers}

template <size_t count>
bool is_in(const Range (&ranges)[count], char32_t code) {{
  const auto* after = std::upper_bound(std::begin(ranges), std::end(ranges), code,
                                       [](char32_t wanted, const Range& range) {{ return wanted < range.first; }});
  return after != std::begin(ranges) && code <= std::prev(after)->last;
}}

}}  // namespace

bool is_letter(char32_t code) {{ return is_in(kLetters, code); }}

bool is_number(char32_t code) {{ return is_in(kNumbers, code); }}

bool is_space(char32_t code) {{
  return (code >= 0x09 && code <= 0x0d) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}}

}}  // namespace models""")
