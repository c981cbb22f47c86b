#include "cache_map.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "console.hpp"

namespace stet::cli {
namespace {

std::string layer_words(const PageInfo& page) {
  if (page.layers == 1) return fmt::format("layer {}", page.layer);
  return fmt::format("{} layers like {}", page.layers, page.layer);
}

// One character a page: how full it is, or that several sequences have it.
char mark(const PageInfo& page) {
  if (page.owners > 1) return '=';
  if (page.filled == page.room) return '#';
  return page.filled * 2 >= page.room ? '+' : '.';
}

// The pages of a group by owner, a line each.
std::string group_text(std::span<const PageInfo> pages) {
  std::vector<PageInfo> sorted(pages.begin(), pages.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const PageInfo& a, const PageInfo& b) {
    return std::pair(a.owner, a.first) < std::pair(b.owner, b.first);
  });
  std::string text = fmt::format("{}, room for {} tokens each:\n", layer_words(pages.front()), pages.front().room);
  for (std::size_t i = 0, j = 0; i < sorted.size(); i = j) {
    std::string marks;
    Pos filled = 0;
    for (; j < sorted.size() && sorted[j].owner == sorted[i].owner; ++j) {
      marks += mark(sorted[j]);
      filled += sorted[j].filled;
    }
    text += fmt::format("  sequence {:<4} {:>6} rows in {} from position {}  {}\n", sorted[i].owner, filled, j - i,
                        sorted[i].first, marks);
  }
  return text;
}

}  // namespace

std::string cache_map_text(const CacheReport& report) {
  const CacheUsage& usage = report.usage;
  std::string text =
      fmt::format("cache when fullest: {} tokens in {} sequences; {} bytes live, {} of them shared; {} reserved\n",
                  usage.tokens, usage.seqs, usage.live, usage.shared, usage.reserved);
  if (usage.copied > 0) text += fmt::format("{} bytes copied (growth, forks, copies on write)\n", usage.copied);
  for (std::size_t i = 0, j = 0; i < report.pages.size(); i = j) {
    while (j < report.pages.size() && report.pages[j].group == report.pages[i].group) ++j;
    text += group_text(std::span(report.pages).subspan(i, j - i));
  }
  Pos filled = 0, room = 0;
  for (const PageInfo& page : report.pages) {
    filled += page.filled;
    room += page.room;
  }
  if (room > 0) {
    text += fmt::format("{} of {} places for rows are filled, {:.1f} % are not\n", filled, room,
                        100.0 * static_cast<double>(room - filled) / static_cast<double>(room));
  }
  if (!report.pages.empty()) text += "  # full, + at least half, . less, = in several sequences\n";
  if (report.lookups > 0) {
    text += fmt::format("prefix cache: {} of {} lookups hit, {} in full; {} of {} tokens; {} evicted\n", report.hits,
                        report.lookups, report.full_hits, report.tokens_hit, report.tokens_asked, report.evicted);
  }
  for (const auto& [why, times] : report.misses) text += fmt::format("  fewer than possible, {}: {}\n", why, times);
  if (!report.kept.empty()) text += fmt::format("kept, {} bytes, least recently used first:\n", report.kept_bytes);
  for (const auto& kept : report.kept) {
    text += printable(fmt::format("  {} tokens{}{}", kept.tokens,
                                  kept.salt.empty() ? "" : fmt::format(", salt {}", kept.salt),
                                  kept.pinned ? ", pinned" : "")) +
            '\n';
  }
  return text;
}

Json cache_map_json(const CacheReport& report) {
  const CacheUsage& usage = report.usage;
  Json json;
  json["schema"] = kSchema;
  json["usage"] = {{"tokens", usage.tokens},          {"sequences", usage.seqs},      {"used_bytes", usage.used},
                   {"live_bytes", usage.live},        {"shared_bytes", usage.shared}, {"copied_bytes", usage.copied},
                   {"reserved_bytes", usage.reserved}};
  json["pages"] = Json::array();
  for (const PageInfo& page : report.pages) {
    json["pages"].push_back({{"group", page.group},
                             {"layer", page.layer},
                             {"layers", page.layers},
                             {"page", page.page},
                             {"first", page.first},
                             {"filled", page.filled},
                             {"room", page.room},
                             {"owners", page.owners},
                             {"owner", page.owner}});
  }
  json["kept"] = Json::array();
  for (const auto& kept : report.kept) {
    Json one = {{"tokens", kept.tokens}, {"pinned", kept.pinned}};
    set_text(one, kept.salt, "salt");
    json["kept"].push_back(one);
  }
  json["kept_bytes"] = report.kept_bytes;
  json["lookups"] = {{"asked", report.lookups},         {"hit", report.hits},
                     {"hit_in_full", report.full_hits}, {"tokens_asked", report.tokens_asked},
                     {"tokens_hit", report.tokens_hit}, {"evicted", report.evicted}};
  json["misses"] = Json::object();
  for (const auto& [why, times] : report.misses) json["misses"][why] = times;
  json["audits"] = {{"audited", report.audited},
                    {"skipped", report.audits_skipped},
                    {"different", report.audits_different},
                    {"first_difference", report.first_difference}};
  return json;
}

}  // namespace stet::cli
