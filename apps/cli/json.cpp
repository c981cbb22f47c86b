#include "json.hpp"

#include <fmt/format.h>

namespace stet::cli {
namespace {

bool valid_utf8(std::string_view text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

}  // namespace

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void set_text(Json& json, std::string_view text, const std::string& key) {
  json[key] = text;
  if (valid_utf8(text)) return;
  std::string hex;
  for (const char c : text) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  json[key + "_hex"] = hex;
}

Result<Json> parse_json(std::string_view text, const std::string& name) {
  // The library takes a zero byte for the end of the text, and its writer recurses as deep as the text nests.
  if (text.find('\0') != std::string_view::npos)
    return fail(Code::corrupt, fmt::format("{}: not JSON, has a zero byte", name));
  constexpr int kMostDepth = 64;
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t, const Json&) {
    too_deep = too_deep || depth > kMostDepth;
    return !too_deep;
  };
  try {
    Json json = Json::parse(text, watch);
    if (too_deep) return fail(Code::corrupt, fmt::format("{}: nests deeper than {} levels", name, kMostDepth));
    return json;
  } catch (const Json::exception& e) {
    std::string_view what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 2: ..."
    if (const auto at = what.find("column "); at != std::string_view::npos) {
      return fail(Code::corrupt, fmt::format("{}: not JSON, {}", name, what.substr(at)));
    }
    return fail(Code::corrupt, fmt::format("{}: not JSON", name));
  }
}

}  // namespace stet::cli
