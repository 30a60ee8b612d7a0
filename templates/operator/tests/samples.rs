//! Every sample holds: its gradients equal central differences.

autobwd::check_all!({{crate_name}});
