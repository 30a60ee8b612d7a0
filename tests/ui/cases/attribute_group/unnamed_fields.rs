use autobwd::Attrs;

#[derive(Attrs, Clone)]
pub struct Window(#[attr] i32);

fn main() {}
