#pragma once

#include <string>
#include <vector>

namespace accelerate::detail {

/// A table in a box, with a title over all columns and every text in the middle of its cell, drawn as Python's estimate-memory
/// draws it. Each row has as many cells as there are headers; the texts are ASCII. No newline at the end.
std::string box_table(const std::string& title, const std::vector<std::string>& headers,
                      const std::vector<std::vector<std::string>>& rows);

}  // namespace accelerate::detail
