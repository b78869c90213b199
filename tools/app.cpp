#include "lockstep/tools/app.h"

#include <CLI/CLI.hpp>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/tools/option_values.h"
#include "lockstep/version.h"

namespace lockstep::cli {

template <class T>
Check whole_number() {
  return std::make_shared<CLI::Validator>(validators::whole_number<T>());
}
template Check whole_number<int>();
template Check whole_number<std::int64_t>();
template Check whole_number<std::uint64_t>();

Check number() { return std::make_shared<CLI::Validator>(validators::number()); }

Check in_range(double smallest, double largest) {
  return std::make_shared<CLI::Validator>(CLI::Range(smallest, largest));
}

Check one_of(const std::vector<std::string>& words) {
  return std::make_shared<CLI::Validator>(CLI::IsMember(words));
}

Option Option::check(const Check& what) { return Option(*option_->check(*what)); }
Option Option::needs(Option other) { return Option(*option_->needs(other.option_)); }
Option Option::required() { return Option(*option_->required()); }
Option Option::delimiter(char character) { return Option(*option_->delimiter(character)); }

App::App(const std::string& description, const std::string& name)
    : app_(std::make_unique<CLI::App>(description, name)) {
  app_->set_version_flag("--version", fmt::format("lockstep {}", version()), "Print the version");
}

App::~App() = default;

template <class T>
Option App::add_option(const std::string& names, T& value, const std::string& help) {
  return Option(*app_->add_option(names, value, help));
}
template Option App::add_option(const std::string&, int&, const std::string&);
template Option App::add_option(const std::string&, std::int64_t&, const std::string&);
template Option App::add_option(const std::string&, std::uint64_t&, const std::string&);
template Option App::add_option(const std::string&, double&, const std::string&);
template Option App::add_option(const std::string&, std::string&, const std::string&);
template Option App::add_option(const std::string&, std::optional<int>&, const std::string&);
template Option App::add_option(const std::string&, std::optional<double>&, const std::string&);
template Option App::add_option(const std::string&, std::optional<std::string>&,
                                const std::string&);
template Option App::add_option(const std::string&, std::vector<std::string>&, const std::string&);

Option App::add_flag(const std::string& name, bool& value, const std::string& help) {
  return Option(*app_->add_flag(name, value, help));
}

void App::footer(const std::string& text) { app_->footer(text); }

bool App::parse(int argc, const char* const* argv) {
  refuse_empty_values(*app_, argc, argv);
  try {
    app_->parse(argc, argv);
    return true;
  } catch (const CLI::Success& answer) {
    app_->exit(answer);
    return false;
  } catch (const CLI::ArgumentMismatch& error) {
    std::string text = error.what();
    constexpr std::string_view words = ": At Most 1 required but received ";
    if (const auto at = text.find(words); at != text.npos)
      text = fmt::format("{} takes one value, and is given {} times", text.substr(0, at),
                         text.substr(at + words.size()));
    throw UsageError(text);
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
}

std::size_t App::count(const std::string& name) const { return app_->count(name); }

}  // namespace lockstep::cli
