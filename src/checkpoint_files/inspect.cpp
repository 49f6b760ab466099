#include <accelerate/checkpoint_files/inspect.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "checkpoint_files/inspection.h"
#include "console/text_columns.h"
#include "core/escaped.h"

namespace accelerate {

using namespace detail;
namespace {

using Json = nlohmann::ordered_json;
using Write = std::function<void(std::string_view)>;

constexpr int kWidestColumn = 60;

std::string shape_text(const InspectedItem& item) {
  if (!item.is_tensor()) return "";
  std::string text = "[";
  for (const int64_t size : *item.shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::string values_text(const InspectedItem& item) {
  std::string text;
  for (const auto& value : item.values) text += (text.empty() ? "" : " ") + value;
  if (item.more) text += " ...";
  if (!item.note.empty()) text += (text.empty() ? "(" : "  (") + item.note + ")";
  return text;
}

using Row = std::vector<std::string>;

/// Rows with columns as wide as they need to be; `right` columns end, the others begin at the same place. Cells may hold anything
/// from a file.
void write_table(std::vector<Row> rows, const std::vector<bool>& right, const Write& write) {
  std::vector<int> widths(right.size(), 0);
  for (auto& row : rows) {
    for (std::string& cell : row) cell = escaped(cell);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], std::min(kWidestColumn, columns_of(row[i])));
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      // Names are never cut, or they could not be copied.
      const auto blanks = static_cast<size_t>(std::max(0, widths[i] - columns_of(row[i])));
      line += right[i] ? std::string(blanks, ' ') + row[i] : row[i] + std::string(last ? 0 : blanks, ' ');
      if (!last) line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    write(line + "\n");
  }
}

std::string summary(const InspectedFile& file) {
  const uint64_t tensors = file.tensors(), values = file.items.size() - tensors;
  if (file.format == "index") return std::to_string(file.items.size()) + " tensors in " + file.metadata[1].second + " files";
  std::string text;
  if (tensors > 0 || values == 0) {
    text = std::to_string(tensors) + (tensors == 1 ? " tensor" : " tensors") + " of " + std::to_string(file.elements()) +
           " elements";
  }
  if (values > 0) text += (text.empty() ? "" : ", ") + std::to_string(values) + (values == 1 ? " value" : " values");
  return text;
}

void write_file_table(const InspectedFile& file, const Write& write) {
  write(escaped(file.path.string()) + ": " + file.format + ", " + bytes_text(file.bytes) + ", " + summary(file) + "\n");
  if (!file.metadata.empty()) {
    write("\nmetadata\n");
    std::vector<Row> rows;
    for (const auto& [name, text] : file.metadata) rows.push_back({"  " + name, text});
    write_table(std::move(rows), {false, false}, write);
  }
  if (file.items.empty()) return;
  write("\n");
  std::vector<Row> rows = {{"name", "type", "shape", "size", "values"}};
  for (const auto& item : file.items) {
    rows.push_back({item.name.empty() ? "(the file itself)" : item.name, item.type, shape_text(item),
                    item.is_tensor() ? bytes_text(item.bytes) : "", values_text(item)});
  }
  write_table(std::move(rows), {false, false, false, true, false}, write);
}

struct Totals {
  uint64_t files = 0, bytes = 0, tensors = 0, elements = 0, damaged = 0;
};

Totals totals_of(const std::vector<InspectedFile>& files) {
  Totals totals;
  for (const auto& file : files) {
    ++totals.files;
    totals.bytes += file.bytes;
    totals.tensors += file.tensors();
    totals.elements += file.elements();
    totals.damaged += file.problem.empty() ? 0 : 1;
  }
  return totals;
}

void write_folder_table(const std::filesystem::path& folder, const std::vector<InspectedFile>& files, const Write& write) {
  const Totals totals = totals_of(files);
  std::vector<Row> rows = {{"file", "size", "kind", "contents"}};
  for (const auto& file : files) {
    const std::string holds = !file.problem.empty() ? "DAMAGED: " + file.problem : file.format == "other" ? "" : summary(file);
    rows.push_back({file.path.string(), bytes_text(file.bytes), file.role, holds});
  }
  write(escaped(folder.string()) + "\n\n");
  write_table(std::move(rows), {false, true, false, false}, write);
  write("\n" + std::to_string(totals.files) + " files, " + bytes_text(totals.bytes) + ", " + std::to_string(totals.tensors) +
        " tensors of " + std::to_string(totals.elements) + " elements" +
        (totals.damaged > 0 ? ", " + std::to_string(totals.damaged) + " damaged" : "") + "\n");
}

/// In ASCII: JSON's own escapes make everything else harmless.
std::string dumped(const Json& json) { return json.dump(-1, ' ', true); }

std::vector<std::string> valid_utf8_of(const std::vector<std::string>& texts) {
  std::vector<std::string> valid;
  for (const auto& text : texts) valid.push_back(valid_utf8(text));
  return valid;
}

Json item_json(const InspectedItem& item) {
  Json json = {{"name", valid_utf8(item.name)}, {item.is_tensor() ? "dtype" : "type", valid_utf8(item.type)}};
  if (item.is_tensor()) {
    json["shape"] = *item.shape;
    json["bytes"] = item.bytes;
    json["first_values"] = valid_utf8_of(item.values);
  } else {
    json["values"] = valid_utf8_of(item.values);
    if (item.more) json["more"] = true;
  }
  if (!item.note.empty()) json["note"] = valid_utf8(item.note);
  return json;
}

/// Written item by item: a file may have very many.
void write_file_json(const InspectedFile& file, const Write& write) {
  Json head = {{"file", valid_utf8(file.path.string())}, {"format", file.format}, {"bytes", file.bytes}};
  if (!file.role.empty()) head["role"] = file.role;
  if (!file.problem.empty()) head["problem"] = file.problem;
  head["metadata"] = Json::object();
  for (const auto& [name, text] : file.metadata) head["metadata"][valid_utf8(name)] = valid_utf8(text);
  std::string text = dumped(head);
  text.pop_back();
  write(text);
  for (const bool tensors : {true, false}) {
    write(tensors ? ",\"tensors\":[" : "],\"values\":[");
    const char* separator = "\n";
    for (const auto& item : file.items) {
      if (item.is_tensor() != tensors) continue;
      write(separator + dumped(item_json(item)));
      separator = ",\n";
    }
  }
  write("]}");
}

void write_folder_json(const std::filesystem::path& folder, const std::vector<InspectedFile>& files, const Write& write) {
  const Totals totals = totals_of(files);
  write("{\"folder\":" + dumped(valid_utf8(folder.string())) + ",\"files\":[");
  const char* separator = "\n";
  for (const auto& file : files) {
    write(separator);
    write_file_json(file, write);
    separator = ",\n";
  }
  const Json sums = {{"files", totals.files},
                     {"bytes", totals.bytes},
                     {"tensors", totals.tensors},
                     {"elements", totals.elements},
                     {"damaged", totals.damaged}};
  write("],\"total\":" + dumped(sums) + "}\n");
}

}  // namespace

bool inspect(const std::filesystem::path& path, InspectStyle style, const Write& write) {
  std::error_code problem;
  if (!std::filesystem::is_directory(path, problem)) {
    const InspectedFile file = inspect_file(path);
    if (style == InspectStyle::kTable) {
      write_file_table(file, write);
    } else {
      write_file_json(file, write);
      write("\n");
    }
    return true;
  }
  const auto files = inspect_folder(path);
  style == InspectStyle::kTable ? write_folder_table(path, files, write) : write_folder_json(path, files, write);
  return totals_of(files).damaged == 0;
}

}  // namespace accelerate
