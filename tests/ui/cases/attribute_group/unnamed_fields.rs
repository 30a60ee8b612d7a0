use autobwd::Attrs;

#[derive(Attrs, Clone, Debug)]
pub struct Window(#[attr] i32);

fn main() {}
