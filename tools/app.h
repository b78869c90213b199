#pragma once
/// What programs need of CLI11, which reads command lines. It is compiled in app.cpp alone: each
/// source that includes it takes five seconds more.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace lockstep::cli {

/// What the value of an option has to be.
using Check = std::shared_ptr<const CLI::Validator>;

/// A number of type T to the last character: int, std::int64_t or std::uint64_t.
template <class T = std::int64_t>
Check whole_number();

/// A finite number in decimal to the last character.
Check number();

Check in_range(double smallest, double largest);
Check one_of(const std::vector<std::string>& words);

/// An option that an App has. It is a reference, and valid as long as its App.
class Option {
 public:
  explicit Option(CLI::Option& option) : option_(&option) {}

  Option check(const Check& what);
  Option needs(Option other);
  Option required();
  Option delimiter(char character);  ///< between values that are given as one

 private:
  CLI::Option* option_;
};

/// The options of a program. Throws UsageError, one line, for a command line that it does not take.
class App {
 public:
  App(const std::string& description, const std::string& name);
  ~App();

  /// `value` is set by parse, which it has to outlive, and keeps what it was without the option.
  /// T is one of those of app.cpp.
  template <class T>
  Option add_option(const std::string& names, T& value, const std::string& help);
  Option add_flag(const std::string& name, bool& value, const std::string& help);
  void footer(const std::string& text);

  /// False after --help or --version, which it has answered.
  bool parse(int argc, const char* const* argv);

  /// How often the command line had the option.
  std::size_t count(const std::string& name) const;

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace lockstep::cli
