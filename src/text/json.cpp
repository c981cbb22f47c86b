#include "text/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/utf8.hpp"

namespace stet::text {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxValues = std::size_t{1} << 22;

/// Leaves the parser, which knows no other way to stop; caught in parse_object.
struct Refused {
  std::string what;
};

/// Watches the parser for what JSON allows and we do not.
class Watch {
 public:
  void see(int depth, json::parse_event_t event, const json& parsed) {
    if (depth > kMaxDepth) throw Refused{fmt::format("nested deeper than {}", kMaxDepth)};
    switch (event) {
      case json::parse_event_t::object_start:
        open_.emplace_back();
        break;
      case json::parse_event_t::object_end:
        open_.pop_back();
        return;
      case json::parse_event_t::array_end:
        return;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!open_.back().insert(key).second)
          throw Refused{fmt::format("key {} appears twice in an object", in_quotes(key))};
        return;
      }
      case json::parse_event_t::array_start:
      case json::parse_event_t::value:
        break;
    }
    if (++values_ > kMaxValues) throw Refused{fmt::format("more than {} values", kMaxValues)};
  }

 private:
  std::vector<std::unordered_set<std::string>> open_;  // the keys so far of every object that is open
  std::size_t values_ = 0;
};

std::string place_of(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte == 0 ? 0 : byte - 1, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t start = before.rfind('\n');
  return fmt::format("line {}, column {}", line, before.size() - (start == before.npos ? 0 : start + 1) + 1);
}

}  // namespace

Result<json> parse_object(const Document& document) {
  Watch watch;
  const auto callback = [&watch](int depth, json::parse_event_t event, json& parsed) {
    watch.see(depth, event, parsed);
    return true;
  };
  try {
    json parsed = json::parse(document.text, callback);
    if (!parsed.is_object()) return fail(Code::corrupt, fmt::format("{}: not a JSON object", document.name));
    return parsed;
  } catch (const Refused& refused) {
    return fail(Code::corrupt, fmt::format("{}: {}", document.name, refused.what));
  } catch (const json::parse_error& error) {
    return fail(Code::corrupt,
                fmt::format("{}: {}: not valid JSON", document.name, place_of(document.text, error.byte)));
  } catch (const json::exception&) {  // a number that no double holds
    return fail(Code::corrupt, fmt::format("{}: a number out of range", document.name));
  }
}

}  // namespace stet::text
