class AssistedCandidateGenerator:
    def __init__(self, assistant_model):
        self.assistant_model = assistant_model

    def get_candidates(self, passes):
        self._generate_candidates(passes)

    def _generate_candidates(self, passes):
        self.assistant_model.generate(passes)


class AssistedCandidateGeneratorDifferentTokenizers(AssistedCandidateGenerator):
    def get_candidates(self, passes):
        self.assistant_model.generate(passes)


class UniversalSpeculativeDecodingGenerator(AssistedCandidateGeneratorDifferentTokenizers):
    def get_candidates(self, passes):
        self._generate_candidates(passes)


class EarlyExitCandidateGenerator(AssistedCandidateGenerator):
    def get_candidates(self, passes):
        super().get_candidates(passes)


class PromptLookupCandidateGenerator:
    def get_candidates(self, passes):
        """Proposes draft tokens without a model, by looking up n-grams of the prompt."""
