#include "weights/json.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "weights/printable.hpp"

namespace stet::weights {
namespace {

using nlohmann::json;

/// The first byte that is not part of well-formed UTF-8 (Unicode 15, table 3-7), if any.
std::optional<std::size_t> invalid_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    if (lead < 0xC2 || lead > 0xF4) return i;
    const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(i + 1) < low || byte(i + 1) > high) return i;
    for (std::size_t k = 2; k < length; ++k) {
      if (byte(i + k) < 0x80 || byte(i + k) > 0xBF) return i;
    }
    i += length;
  }
  return std::nullopt;
}

/// Builds the tree event by event, so that a limit stops the parser instead of being noticed afterwards. The parser
/// itself does not recurse. Names and signatures are those that nlohmann::json::sax_parse calls.
class Builder {
 public:
  bool null() { return add(nullptr) != nullptr; }
  bool boolean(bool value) { return add(value) != nullptr; }
  bool number_integer(json::number_integer_t value) { return add(value) != nullptr; }
  bool number_unsigned(json::number_unsigned_t value) { return add(value) != nullptr; }
  bool number_float(json::number_float_t value, const json::string_t& /*text*/) { return add(value) != nullptr; }
  bool string(json::string_t& value) { return add(std::move(value)) != nullptr; }
  bool binary(json::binary_t& /*value*/) { return refuse("binary data"); }
  bool start_object(std::size_t /*size*/) { return open(json::object()); }
  bool start_array(std::size_t /*size*/) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(json::string_t& key) {
    if (open_.back()->contains(key)) return refuse(fmt::format("duplicate key {}", printable(key)));
    key_ = std::move(key);
    return true;
  }

  bool parse_error(std::size_t byte, const std::string& /*token*/, const json::exception& error) {
    std::string_view what = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 3: what is wrong"
    if (const auto end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    if (const auto end = what.find(": "); what.starts_with("parse error") && end != what.npos)
      what.remove_prefix(end + 2);
    return refuse(fmt::format("not JSON at byte {}: {}", byte, printable(what)));
  }

  Result<json> take(std::string_view where) {
    if (!error_.empty()) return fail(Code::corrupt, fmt::format("{}: {}", where, error_));
    return std::move(root_);
  }

 private:
  bool refuse(std::string why) {
    error_ = std::move(why);
    return false;
  }

  json* add(json value) {
    if (++values_ > kMaxJsonValues) {
      refuse(fmt::format("more than {} JSON values", kMaxJsonValues));
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    json& slot = (*open_.back())[key_];
    slot = std::move(value);
    return &slot;
  }

  bool open(json container) {
    if (open_.size() == kMaxJsonDepth) return refuse(fmt::format("JSON nested deeper than {}", kMaxJsonDepth));
    json* added = add(std::move(container));
    if (added == nullptr) return false;
    open_.push_back(added);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> open_;  // a container grows only while it is the innermost, so these stay valid
  std::string key_, error_;
  std::size_t values_ = 0;
};

}  // namespace

Result<json> parse_json(std::string_view text, std::string_view where) {
  if (const auto byte = invalid_utf8(text))
    return fail(Code::corrupt, fmt::format("{}: not UTF-8 at byte {}", where, *byte + 1));
  // The library takes a zero byte for the end of the text and would not look at what follows.
  if (const auto zero = text.find('\0'); zero != text.npos) {
    return fail(Code::corrupt, fmt::format("{}: not JSON at byte {}: a zero byte", where, zero + 1));
  }
  try {
    Builder builder;
    json::sax_parse(text, &builder);
    return builder.take(where);
  } catch (const std::exception& error) {
    return fail(Code::corrupt, fmt::format("{}: {}", where, printable(error.what())));
  }
}

std::string spelled(const json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return printable(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

}  // namespace stet::weights
