//! Every sample passes, and samples are complete.

autobwd::check_all!(autobwd_downstream);
