#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// Does a name that a user wrote mean the class `class_name`, as a compiler spells it? It may be written in full or by its last
/// component, and with or without Impl: Block, BlockImpl, my::Block and my::BlockImpl all mean my::BlockImpl.
bool names_class(std::string_view written, std::string_view class_name);

/// Does any of them?
bool any_names_class(const std::vector<std::string>& written, std::string_view class_name);

}  // namespace accelerate::detail
