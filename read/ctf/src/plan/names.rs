//! What the fields of a class are called.

use super::Class;
use crate::model::Scope;

impl Class {
    /// The members of contexts and fields as [`Event::visit`](crate::Event::visit) shows them, those in other structures apart: where each is, and its
    /// name.
    pub fn members(&self) -> impl Iterator<Item = (Scope, &str)> {
        let scopes = [
            (Scope::EventContext, &self.event_context),
            (Scope::OwnContext, &self.own_context),
            (Scope::Fields, &self.fields),
        ];
        let scopes = scopes.into_iter().filter_map(|(scope, structure)| Some((scope, structure.as_ref()?)));
        scopes.flat_map(|(scope, structure)| structure.members.iter().map(move |member| (scope, &*member.shown)))
    }
}
