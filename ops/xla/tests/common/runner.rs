//! A runner of tests that ignores those on devices if there is no plugin.

use autobwd::{Error, ErrorKind, Result};
use autobwd_xla::pjrt::Plugin;
use libtest_mimic::{Arguments, Trial};

/// A test with its name.
pub(crate) type Test = (&'static str, fn() -> Result<()>);

/// Functions as [`Test`]s.
macro_rules! tests {
    ($($test:path),* $(,)?) => { vec![$((stringify!($test), $test as fn() -> autobwd::Result<()>)),*] };
}
pub(crate) use tests;

/// Runs tests. Without a plugin, the tests on devices are ignored.
pub(crate) fn run(tests: Vec<Test>, on_devices: Vec<Test>) -> ! {
    let trial = |(name, test): Test| Trial::test(name, move || Ok(test()?));
    let is_missing = std::env::var_os(Plugin::PATH_VARIABLE).is_none();
    let kind = if is_missing { "AUTOBWD_PJRT_PLUGIN is not set" } else { "" };
    let on_devices =
        on_devices.into_iter().map(|test| trial(test).with_ignored_flag(is_missing).with_kind(kind));
    let trials = tests.into_iter().map(trial).chain(on_devices).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}

/// The plugin of `AUTOBWD_PJRT_PLUGIN`.
pub(crate) fn plugin() -> Result<Plugin> {
    Plugin::from_env()?.ok_or_else(|| Error::new(ErrorKind::Device, "AUTOBWD_PJRT_PLUGIN is not set"))
}
