// What `stet generate` does with the cache besides using it: plans it, fills it from a file, and says what it held.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <system_error>

#include "cache_map.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "generate.hpp"
#include "interrupt.hpp"
#include "plan.hpp"

namespace stet::cli {

int dry_run(const GenerateFlags& flags) {
  const EngineOptions& options = flags.model.engine;
  const auto info = Engine::inspect(model_of(flags.model), options);
  if (!info) return report(info.error());
  const auto fits = Engine::check_fits(*info);
  if (flags.json) {
    Json json = plan_json(*info, options);
    json["schema"] = kSchema;
    json["model"] = info->name;
    json["fits"] = fits.has_value();
    const int code = print_line(dump(json), kOk);
    return fits ? code : report(fits.error());
  }
  std::string text = plan_text(*info, options);
  text.pop_back();
  const int code = print_line(std::move(text), kOk);
  return fits ? code : report(fits.error());
}

Result<Engine> load_for(const GenerateFlags& flags) {
  ModelFlags model = flags.model;
  if ((!flags.save_kv.empty() || !flags.load_kv.empty()) && !model.engine.prefix_bytes) {
    model.engine.prefix_bytes = std::numeric_limits<std::size_t>::max();
  }
  model.engine.map = flags.cache_map;
  // What can be seen now is not found out after the work.
  const auto folder = std::filesystem::path(flags.save_kv).parent_path();
  if (std::error_code error; !folder.empty() && !std::filesystem::is_directory(folder, error)) {
    return fail(Code::not_found, fmt::format("--save-kv {}: there is no folder {}", flags.save_kv, folder.string()));
  }
  auto engine = load_engine(model);
  if (!engine || flags.load_kv.empty()) return engine;
  auto loaded = engine->load_cache(flags.load_kv, flags.reencode);
  if (!loaded) return pass(loaded);
  if (flags.reencode) say(fmt::format("{}: rows of other codecs were stored again, with loss", flags.load_kv));
  return engine;
}

Result<void> warn_of_codecs(const Engine& engine, const Request& request) {
  const auto check = engine.check_codecs(request.prompt);
  if (!check) return pass(check);
  if (check->poor()) {
    say(
        fmt::format("warning: with a cache in {} only {} of {} most likely tokens are the model's own (stet eval --kv "
                    "measures codecs)",
                    engine.info().cache_codecs, check->same, check->positions));
  }
  return {};
}

int end_run(Engine& engine, const GenerateFlags& flags, int code) {
  if (!flags.save_kv.empty()) {
    const auto saved = engine.save_cache(flags.save_kv, [] { return !interrupted(); });
    if (!saved) return report(saved.error());
  }
  const CacheReport report = engine.cache_report();
  if (flags.cache_map && !flags.json) {
    std::string text = cache_map_text(report);
    while (text.ends_with('\n')) text.pop_back();
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      say(text.substr(at, end - at));
      at = end + 1;
    }
  }
  if (report.audits_different > 0) {
    say(fmt::format("audit: {} of {} hits differ from what they stand for; {}", report.audits_different, report.audited,
                    report.first_difference));
    return kFailure;
  }
  return code;
}

}  // namespace stet::cli
