use autobwd::Attrs;

#[derive(Attrs, Clone, Debug)]
pub enum Window {
    Square,
}

fn main() {}
