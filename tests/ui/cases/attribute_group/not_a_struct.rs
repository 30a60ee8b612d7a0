use autobwd::Attrs;

#[derive(Attrs, Clone)]
pub enum Window {
    Square,
}

fn main() {}
