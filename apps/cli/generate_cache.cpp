// What `stet generate` does with the cache besides using it: plans it, fills it from a file, and says what it held.
#include <fmt/format.h>
#include <unistd.h>

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

namespace {

// What can be seen now is not found out after the work.
Result<void> check_target(const std::string& file) {
  if (file.empty()) return {};
  std::error_code error;
  const std::filesystem::path path = file;
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const auto refuse = [&](const std::string& why) {
    return fail(Code::invalid_argument, fmt::format("--save-kv {}: {}", file, why));
  };
  if (!std::filesystem::is_directory(folder, error)) return refuse("there is no folder " + folder.string());
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return refuse("is there and not a regular file");
  }
  if (::access(folder.c_str(), W_OK) != 0) return refuse("nothing may be written into " + folder.string());
  return {};
}

}  // namespace

Result<Engine> load_for(const GenerateFlags& flags) {
  ModelFlags model = flags.model;
  if ((!flags.save_kv.empty() || !flags.load_kv.empty()) && !model.engine.prefix_bytes) {
    model.engine.prefix_bytes = std::numeric_limits<std::size_t>::max();
  }
  model.engine.map = flags.cache_map;
  if (auto ok = check_target(flags.save_kv); !ok) return pass(ok);
  auto engine = load_engine(model);
  if (!engine || flags.load_kv.empty()) return engine;
  auto loaded = engine->load_cache(flags.load_kv, flags.reencode);
  if (!loaded) return pass(loaded);
  if (loaded->kept < loaded->saved) {
    say(fmt::format("{}: {} of {} sequences had room (--prefix-cache and --cache paged make more)", flags.load_kv,
                    loaded->kept, loaded->saved));
  }
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
    // Also after a Ctrl-C, what was computed so far; a second one ends the program, and the old file stays.
    const auto saved = engine.save_cache(flags.save_kv);
    if (!saved) {
      (void)report(saved.error());
      return code == kOk ? kFailure : code;
    }
    const std::uint64_t evicted = engine.cache_report().evicted;
    say(fmt::format("saved {} sequence{} in {}{}", *saved, *saved == 1 ? "" : "s", flags.save_kv,
                    evicted > 0 ? fmt::format("; {} had been evicted for want of room", evicted) : ""));
  }
  const CacheReport report = engine.cache_report();
  if (flags.model.engine.audit > 0) {
    say(fmt::format("audit: {} hits computed anew, {} different, {} skipped for want of room", report.audited,
                    report.audits_different, report.audits_skipped));
  }
  if (flags.cache_map && (!flags.json || !flags.prompts.empty())) {
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
