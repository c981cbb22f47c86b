// Running gnuplot: a script in, a picture out.
#pragma once

#include <functional>
#include <string>

#include "stet/result.hpp"

namespace stet::report {

/// What gnuplot, found as the system finds programs, writes to its standard output for the script. It is waited for,
/// whatever happens. Code::not_found: it is not installed. Code::unsupported: it failed, with the last line that it
/// wrote to its standard error, ran longer than a minute or wrote more than 64 MiB. Code::interrupted when `keep_going`
/// answers false, which is asked at least about twenty times a second; gnuplot is then killed. Code::io: the system has
/// no process, pipe or memory for it.
Result<std::string> run_gnuplot(const std::string& script, const std::function<bool()>& keep_going);

}  // namespace stet::report
