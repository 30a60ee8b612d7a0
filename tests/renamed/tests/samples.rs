//! Generated code finds autobwd under its other name.

autobwd_check::check_all!(autobwd_renamed);
