//! Every sample holds, and samples leave nothing out.

autobwd::check_all!(autobwd_downstream);
